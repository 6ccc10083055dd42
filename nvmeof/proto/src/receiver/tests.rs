//! The states of a receiver, and what they make of what comes.

use super::*;
use crate::command::{Command, io};
use crate::completion::{Completion, Status};
use crate::pdu::{DataHeader, Digests, IcReq, IcResp, R2t, TermReq};

/// Data of the PDU that the table is about.
const DATA: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
/// Digests and 4 bytes between a header with its digest and its data.
const FRAMING: Framing = Framing {
    digests: Digests::BOTH,
    align_dwords: 7,
};

fn sample(kind: PduKind) -> Pdu {
    let data = DataHeader {
        cid: 1,
        ttag: 0,
        offset_bytes: 0,
        len_bytes: 8,
        is_last: true,
        is_success: false,
    };
    let request = TermReq {
        status: 1,
        information: 0,
    };
    let digests = Digests::NONE;
    match kind {
        PduKind::IcReq => Pdu::IcReq(IcReq {
            version: 0,
            align_dwords: 0,
            digests,
            r2t_max: 0,
        }),
        PduKind::IcResp => Pdu::IcResp(IcResp {
            version: 0,
            align_dwords: 0,
            digests,
            h2c_data_bytes_max: 4096,
        }),
        PduKind::H2cTermReq => Pdu::H2cTermReq(request),
        PduKind::C2hTermReq => Pdu::C2hTermReq(request),
        PduKind::CapsuleCmd => Pdu::Command(Command::new(io::FLUSH, 1, [0; 6])),
        PduKind::CapsuleResp => Pdu::Response(Completion {
            result: 0,
            head: 0,
            queue_id: 0,
            cid: 1,
            status: Status::SUCCESS,
        }),
        PduKind::H2cData => Pdu::H2cData(data),
        PduKind::C2hData => Pdu::C2hData(data),
        PduKind::R2t => Pdu::R2t(R2t {
            cid: 1,
            ttag: 0,
            offset_bytes: 0,
            len_bytes: 8,
        }),
    }
}

fn receiver(role: Role, is_open: bool) -> Receiver {
    let mut receiver = Receiver::new(role);
    if is_open {
        receiver.open(Framing::INITIAL);
    }
    receiver
}

#[test]
fn each_role_hears_what_the_other_may_say_now() {
    let mut table = String::new();
    for role in [Role::Host, Role::Controller] {
        for is_open in [false, true] {
            table += &format!("{role:?} {}:", if is_open { "open" } else { "new" });
            for kind in PduKind::ALL {
                let (pdu, mut bytes) = (sample(kind), Vec::new());
                let has_data = matches!(kind, PduKind::H2cData | PduKind::C2hData);
                let data_len_bytes = if has_data { 8 } else { 0 };
                Framing::INITIAL.append_header(&mut bytes, &pdu, data_len_bytes);
                match receiver(role, is_open).step(&mut &bytes[..]) {
                    Ok(step) => {
                        let heard = Step::Pdu {
                            pdu,
                            data_len_bytes,
                        };
                        assert_eq!(step, heard);
                        table += &format!(" {kind:?}");
                    }
                    Err(fault) => assert_eq!(fault, WireFault::Unexpected { kind }),
                }
            }
            for found in [8, 10, 0xff] {
                let bytes = [found; 8];
                let unknown = receiver(role, is_open).step(&mut &bytes[..]);
                assert_eq!(unknown, Err(WireFault::UnknownKind { found }));
            }
            table += "\n";
        }
    }
    assert_eq!(
        table,
        "Host new: IcResp C2hTermReq\n\
         Host open: C2hTermReq CapsuleResp C2hData R2t\n\
         Controller new: IcReq H2cTermReq\n\
         Controller open: H2cTermReq CapsuleCmd H2cData\n"
    );
}

#[test]
fn a_header_is_as_long_as_its_kind_is() {
    for kind in PduKind::ALL {
        let role = match kind.sender() {
            Role::Host => Role::Controller,
            Role::Controller => Role::Host,
        };
        let is_open = !kind.is_initial();
        let right = u8::try_from(kind.header_bytes()).expect("short");
        for header_bytes in [0, right - 1, right + 1, 0xff] {
            let bytes = [kind.to_wire(), 0, header_bytes, 0, 0, 0, 0, 0];
            let step = receiver(role, is_open).step(&mut &bytes[..]);
            assert_eq!(step, Err(WireFault::BadField { kind, at: 2 }));
        }
    }
}

/// A PDU in its parts: what a receiver waits for in each of its states.
fn parts() -> [(&'static str, Vec<u8>); 5] {
    let mut headed = Vec::new();
    FRAMING.append_header(&mut headed, &sample(PduKind::C2hData), 8);
    let (header, pad) = headed.split_at(FRAMING.headed_bytes(PduKind::C2hData));
    let mut digest = Vec::new();
    FRAMING.append_data_digest(&mut digest, || {
        lunette_runtime_core::checksum::crc32c(&DATA)
    });
    [
        ("Header", header.to_vec()),
        ("Pad", pad.to_vec()),
        ("Data", DATA.to_vec()),
        ("Digest", digest),
        ("Failed", Vec::new()),
    ]
}

fn state_of(receiver: &Receiver) -> &'static str {
    match receiver.state {
        State::Header => "Header",
        State::Pad { .. } => "Pad",
        State::Data { .. } => "Data",
        State::Digest { .. } => "Digest",
        State::Failed(_) => "Failed",
    }
}

/// Feeds `bytes`, and says what came of them last that is not for want of more, and the state then.
fn fed(receiver: &mut Receiver, bytes: &[u8]) -> String {
    let mut input = bytes;
    let mut last = "-";
    loop {
        last = match receiver.step(&mut input) {
            Ok(Step::NeedBytes | Step::NeedData { .. }) => break,
            Ok(Step::Pdu { .. }) => "Pdu",
            Ok(Step::Data { .. }) => "Bytes",
            Ok(Step::DataEnd(Verdict::Intact)) => "Intact",
            Ok(Step::DataEnd(Verdict::Corrupt { .. })) => "Corrupt",
            Err(_) => {
                last = "Fault";
                break;
            }
        };
    }
    format!("{last}>{}", state_of(receiver))
}

/// A receiver in one of its states, with a byte of what it waits for already there.
fn in_state(wanted: usize) -> Receiver {
    let mut receiver = Receiver::new(Role::Host);
    receiver.open(FRAMING);
    if wanted == 4 {
        receiver.fail(WireFault::Truncated);
        return receiver;
    }
    let parts = parts();
    for (_, part) in &parts[..wanted] {
        fed(&mut receiver, part);
    }
    fed(&mut receiver, &parts[wanted].1[..1]);
    receiver
}

#[test]
fn every_state_answers_every_event() {
    let mut table = String::new();
    for (index, (name, part)) in parts().iter().enumerate() {
        assert_eq!(state_of(&in_state(index)), *name);
        let rest = part.get(1..).unwrap_or_default();
        let mut damaged = rest.to_vec();
        if let Some(byte) = damaged.last_mut() {
            *byte ^= 1;
        }
        table += &format!("{name}:");
        for bytes in [&[][..], &rest[..rest.len().min(1)], rest, &damaged] {
            table += &format!(" {}", fed(&mut in_state(index), bytes));
        }
        let mut failed = in_state(index);
        failed.fail(WireFault::Truncated);
        table += &format!(" {}\n", fed(&mut failed, &[0; 200]));
    }
    // Columns: nothing, one more byte, the rest of what is waited for, the same damaged, a fault of the connection.
    assert_eq!(
        table,
        "Header: ->Header ->Header Pdu>Pad Fault>Failed Fault>Failed\n\
         Pad: ->Pad ->Pad ->Data ->Data Fault>Failed\n\
         Data: ->Data Bytes>Data Bytes>Digest Bytes>Digest Fault>Failed\n\
         Digest: ->Digest ->Digest Intact>Header Corrupt>Header Fault>Failed\n\
         Failed: Fault>Failed Fault>Failed Fault>Failed Fault>Failed Fault>Failed\n"
    );
}

#[test]
fn data_received_elsewhere_lead_to_the_same_states() {
    for (bytes, state) in [(&DATA[1..2], "Data"), (&DATA[1..], "Digest")] {
        let mut receiver = in_state(2);
        receiver.on_data(bytes);
        assert_eq!(state_of(&receiver), state);
        let mut rest = DATA[1 + bytes.len()..].to_vec();
        rest.extend_from_slice(&parts()[3].1);
        assert_eq!(fed(&mut receiver, &rest), "Intact>Header");
    }
}
