//! Both ends against each other.

use std::sync::Arc;

use super::*;
use crate::host::RequestData;
use crate::nqn::Nqn;

fn name(text: &str) -> Nqn {
    Nqn::new(text).expect("a name")
}

fn secret(byte: u8) -> Secret {
    Secret::new(&[byte; 32], Some(Hash::Sha256)).expect("a secret")
}

fn entropy(seed: u64) -> Entropy {
    let mut next = seed;
    Entropy::draw(|| {
        next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        next ^ next >> 29
    })
}

fn credentials(controller: Option<Secret>, hash: Hash, group: Group) -> Credentials {
    Credentials {
        host: secret(1),
        controller,
        hashes: vec![hash],
        groups: vec![group],
    }
}

struct Ends {
    host: HostAuth,
    controller: ControllerAuth,
}

impl Ends {
    fn new(host: Credentials, controller: Credentials) -> Self {
        let (h, s) = (name("nqn.host"), name("nqn.subsystem"));
        let host = HostAuth::new(Arc::new(host), h.clone(), s.clone(), entropy(1));
        Self {
            host,
            controller: ControllerAuth::new(Arc::new(controller), h, s),
        }
    }

    /// Runs to the end; `tamper` sees every message, which comes from the host if its flag is set.
    fn run(mut self, mut tamper: impl FnMut(bool, &mut Vec<u8>)) -> (AuthNext, ControllerAuth) {
        for seed in 2..20 {
            let request = match self.host.next_request() {
                AuthNext::Send(request) => request,
                end => return (end, self.controller),
            };
            assert!(is_of_protocol(&request.command));
            let (status, data) = match request.data {
                RequestData::Out(mut bytes) => {
                    tamper(true, &mut bytes);
                    self.controller.on_send(&bytes, &entropy(seed));
                    (Status::SUCCESS, Vec::new())
                }
                RequestData::In(len) => match self.controller.on_receive(len) {
                    Ok(mut bytes) => {
                        tamper(false, &mut bytes);
                        (Status::SUCCESS, bytes)
                    }
                    Err(status) => (status, Vec::new()),
                },
                RequestData::None => unreachable!("messages are data"),
            };
            self.host.on_completion(status, &data);
        }
        unreachable!("it ends")
    }
}

#[test]
fn both_ends_prove_themselves_with_every_hash_and_group() {
    for hash in Hash::ALL {
        for group in Group::ALL {
            // The large ones once.
            if group > Group::Ffdhe2048 && hash != Hash::Sha256 {
                continue;
            }
            for controller in [None, Some(secret(2))] {
                let ours = credentials(controller.clone(), hash, group);
                let (end, auth) = Ends::new(ours.clone(), ours).run(|_, _| {});
                assert_eq!(end, AuthNext::Done, "{hash:?} {group:?} {controller:?}");
                assert!(auth.is_authenticated() && !auth.is_over());
            }
        }
    }
}

#[test]
fn a_host_without_the_secret_is_refused() {
    let known = credentials(None, Hash::Sha256, Group::Null);
    let wrong = Credentials {
        host: secret(9),
        ..known.clone()
    };
    let (end, auth) = Ends::new(wrong, known).run(|_, _| {});
    assert_eq!(end, AuthNext::Failed(AuthFault::Rejected(Reason::Failed)));
    assert!(!auth.is_authenticated() && auth.is_over());
}

#[test]
fn a_controller_without_its_secret_is_refused() {
    let known = credentials(Some(secret(2)), Hash::Sha256, Group::Null);
    let wrong = credentials(Some(secret(3)), Hash::Sha256, Group::Null);
    let (end, auth) = Ends::new(known.clone(), wrong).run(|_, _| {});
    assert_eq!(end, AuthNext::Failed(AuthFault::Unproved));
    assert!(!auth.is_authenticated() && auth.is_over(), "it was told");
    // One that has none ends it itself.
    let without = credentials(None, Hash::Sha256, Group::Null);
    let (end, _) = Ends::new(known.clone(), without).run(|_, _| {});
    assert_eq!(end, AuthNext::Failed(AuthFault::Rejected(Reason::Failed)));
    // And one that pretends that nobody asked.
    let (end, auth) = Ends::new(known.clone(), known).run(|is_host, bytes| {
        if !is_host && bytes[1] == 3 {
            bytes[8] = 0;
        }
    });
    assert_eq!(end, AuthNext::Failed(AuthFault::Unproved));
    assert!(!auth.is_authenticated());
}

#[test]
fn a_fault_is_known_before_the_controller_is_told() {
    let known = credentials(Some(secret(2)), Hash::Sha256, Group::Null);
    let wrong = credentials(Some(secret(3)), Hash::Sha256, Group::Null);
    let Ends {
        mut host,
        mut controller,
    } = Ends::new(known, wrong);
    let mut faults = Vec::new();
    while let AuthNext::Send(request) = host.next_request() {
        faults.push(host.fault());
        let told = match request.data {
            RequestData::Out(bytes) => {
                controller.on_send(&bytes, &entropy(2));
                Vec::new()
            }
            _ => controller.on_receive(4096).expect("something to tell"),
        };
        host.on_completion(Status::SUCCESS, &told);
    }
    let unproved = Some(AuthFault::Unproved);
    assert_eq!(faults, [None, None, None, None, unproved]);
}

#[test]
fn without_anything_in_common_both_say_so() {
    let hash = |hash| credentials(None, hash, Group::Null);
    let group = |group| credentials(None, Hash::Sha256, group);
    for (host, controller, reason) in [
        (hash(Hash::Sha256), hash(Hash::Sha384), Reason::Hash),
        (group(Group::Null), group(Group::Ffdhe2048), Reason::Group),
    ] {
        let (end, auth) = Ends::new(host, controller).run(|_, _| {});
        assert_eq!(end, AuthNext::Failed(AuthFault::Rejected(reason)));
        assert!(auth.is_over());
    }
}

#[test]
fn a_controller_chooses_by_its_own_order() {
    let all = Credentials::new(secret(1), None);
    let mut chosen = None;
    let controller = Credentials {
        hashes: vec![Hash::Sha512, Hash::Sha256],
        groups: vec![Group::Ffdhe2048, Group::Null],
        ..all.clone()
    };
    let (end, _) = Ends::new(all, controller).run(|_, bytes| {
        if let Ok((_, Message::Challenge(challenge))) = Message::decode(bytes) {
            chosen = Some((challenge.hash, challenge.group));
        }
    });
    assert_eq!(end, AuthNext::Done);
    assert_eq!(chosen, Some((Hash::Sha512, Group::Ffdhe2048)));
}

#[test]
fn no_changed_byte_goes_unnoticed() {
    let ours = credentials(Some(secret(2)), Hash::Sha256, Group::Null);
    let mut messages = Vec::new();
    let (end, _) = Ends::new(ours.clone(), ours.clone()).run(|_, bytes| messages.push(bytes.len()));
    assert_eq!((end, messages.len()), (AuthNext::Done, 5));
    // What is read of each: what is reserved, and zeroes behind, do not matter.
    let read = [
        &[0..2, 4..7][..],
        &[0..2, 4..7, 8..48],
        &[0..2, 4..7, 8..9, 10..80],
        &[0..2, 4..7, 8..9, 16..48],
        &[0..2, 4..6],
    ];
    for (index, ranges) in read.into_iter().enumerate() {
        for at in ranges.iter().cloned().flatten() {
            let mut count = 0;
            let (end, auth) = Ends::new(ours.clone(), ours.clone()).run(|_, bytes| {
                if count == index {
                    bytes[at] ^= 1;
                }
                count += 1;
            });
            let is_last = index == 4;
            assert_eq!(
                end == AuthNext::Done,
                is_last,
                "byte {at} of message {index}: {end:?}"
            );
            assert!(!auth.is_authenticated(), "byte {at} of message {index}");
        }
    }
}

#[test]
fn hosts_may_prove_themselves_again_and_a_failure_ends_it() {
    let ours = credentials(None, Hash::Sha256, Group::Null);
    let (_, controller) = Ends::new(ours.clone(), ours.clone()).run(|_, _| {});
    let again = Ends {
        controller,
        ..Ends::new(ours.clone(), ours.clone())
    };
    let (end, controller) = again.run(|_, _| {});
    assert_eq!(end, AuthNext::Done);
    let wrong = Credentials {
        host: secret(9),
        ..ours.clone()
    };
    let again = Ends {
        controller,
        ..Ends::new(wrong, ours)
    };
    let (end, controller) = again.run(|_, _| {});
    assert!(matches!(end, AuthNext::Failed(_)) && controller.is_over());
}

#[test]
fn a_proof_that_was_heard_proves_nothing_again() {
    let ours = credentials(None, Hash::Sha256, Group::Null);
    let mut heard = Vec::new();
    let (_, controller) = Ends::new(ours.clone(), ours.clone()).run(|is_host, bytes| {
        if is_host {
            heard.push(bytes.clone());
        }
    });
    assert!(controller.is_authenticated());
    let mut controller =
        ControllerAuth::new(Arc::new(ours), name("nqn.host"), name("nqn.subsystem"));
    controller.on_send(&heard[0], &entropy(77));
    controller.on_receive(4096).expect("a challenge");
    controller.on_send(&heard[1], &entropy(78));
    let told = Message::decode(&controller.on_receive(4096).expect("a refusal"));
    assert!(matches!(told, Ok((_, Message::Failure1(Reason::Failed)))));
    assert!(controller.is_over() && !controller.is_authenticated());
}

#[test]
fn what_cannot_be_told_now_or_there_is_refused() {
    let ours = credentials(None, Hash::Sha256, Group::Null);
    let mut controller = ControllerAuth::new(
        Arc::new(ours.clone()),
        name("nqn.host"),
        name("nqn.subsystem"),
    );
    let early = controller.on_receive(4096).map_err(Status::code);
    assert_eq!(early, Err(Status::COMMAND_SEQUENCE_ERROR.code()));
    let negotiate = Message::Negotiate {
        wants_secure_channel: false,
        has_protocol: true,
        hashes: ours.hashes,
        groups: ours.groups,
    };
    controller.on_send(&negotiate.encode(5, 0), &entropy(3));
    for len_bytes in [0, 47, 65_537] {
        let refused = controller.on_receive(len_bytes).map_err(Status::code);
        assert_eq!(refused, Err(Status::INVALID_FIELD.code()), "{len_bytes}");
    }
    assert_eq!(controller.on_receive(48).map(|told| told.len()), Ok(48));
    // A secure channel, and no protocol that is known.
    for (at, reason) in [(6, Reason::Concatenation), (8, Reason::Protocol)] {
        let mut bytes = negotiate.encode(5, 0);
        bytes[at] = 2;
        let mut controller = ControllerAuth::new(
            Arc::new(credentials(None, Hash::Sha256, Group::Null)),
            name("nqn.host"),
            name("nqn.subsystem"),
        );
        controller.on_send(&bytes, &entropy(3));
        let told = controller.on_receive(64).expect("a refusal");
        assert_eq!(Message::decode(&told), Ok((5, Message::Failure1(reason))));
    }
}

#[test]
fn every_stage_answers_every_event() {
    use super::{controller, host};
    let mut table = String::new();
    let stages = [
        host::Stage::Negotiating,
        host::Stage::AwaitingChallenge,
        host::Stage::Replying,
        host::Stage::AwaitingSuccess,
        host::Stage::Confirming,
        host::Stage::Rejecting,
        host::Stage::Done,
        host::Stage::Failed,
    ];
    for stage in stages {
        use host::Event::{Believed, BothProved, Challenged, Ended, Objected, Sent};
        table += &format!("{stage:?}:");
        for event in [Sent, Challenged, Believed, BothProved, Objected, Ended] {
            let after = stage.after(event);
            table += &after.map_or(" -".to_owned(), |after| format!(" {after:?}"));
        }
        table += "\n";
    }
    let expected = "\
        Negotiating: AwaitingChallenge - - - - Failed\n\
        AwaitingChallenge: - Replying - - Rejecting Failed\n\
        Replying: AwaitingSuccess - - - - Failed\n\
        AwaitingSuccess: - - Done Confirming Rejecting Failed\n\
        Confirming: Done - - - - Failed\n\
        Rejecting: Failed - - - - Failed\n\
        Done: - - - - - -\n\
        Failed: - - - - - -\n";
    assert_eq!(table, expected);
    let mut table = String::new();
    let stages = [
        controller::Stage::Idle,
        controller::Stage::Challenging,
        controller::Stage::AwaitingReply,
        controller::Stage::Proved,
        controller::Stage::AwaitingSuccess2,
        controller::Stage::Done,
        controller::Stage::Failing,
        controller::Stage::Failed,
    ];
    for stage in stages {
        use controller::Event::{Confirmed, Ended, Negotiated, Objected, Replied, Told, ToldLast};
        table += &format!("{stage:?}:");
        for event in [
            Negotiated, Replied, Confirmed, Told, ToldLast, Objected, Ended,
        ] {
            let after = stage.after(event);
            table += &after.map_or(" -".to_owned(), |after| format!(" {after:?}"));
        }
        table += "\n";
    }
    let expected = "\
        Idle: Challenging - - - - Failing Failed\n\
        Challenging: - - - AwaitingReply - Failing Failed\n\
        AwaitingReply: - Proved - - - Failing Failed\n\
        Proved: - - - AwaitingSuccess2 Done Failing Failed\n\
        AwaitingSuccess2: - - Done - - Failing Failed\n\
        Done: Challenging - - - - Failing Failed\n\
        Failing: - - - - Failed Failing Failed\n\
        Failed: - - - - - - -\n";
    assert_eq!(table, expected);
}
