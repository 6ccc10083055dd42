//! What a host answers to a controller that does not keep to the rules.

use super::*;
use crate::command::io;
use crate::completion::HEAD_WITHOUT_FLOW_CONTROL;
use crate::fabrics::Connect;
use crate::pdu::TermReq;

const OPTIONS: HostOptions = HostOptions {
    digests: Digests::NONE,
    r2t_max: 1,
    commands_max: 4,
};

fn open_queue() -> HostQueue {
    let mut queue = HostQueue::new(OPTIONS);
    queue.start(&mut Vec::new());
    let response = IcResp {
        version: 0,
        align_dwords: 0,
        digests: Digests::NONE,
        h2c_data_bytes_max: 4096,
    };
    let bytes = bytes_of(&Pdu::IcResp(response), 0);
    let step = queue.step(&mut &bytes[..]);
    assert_eq!(step, Ok(HostStep::Open(response)));
    queue
}

fn bytes_of(pdu: &Pdu, data_len_bytes: u32) -> Vec<u8> {
    let mut out = Vec::new();
    Framing::INITIAL.append_header(&mut out, pdu, data_len_bytes);
    out.resize(out.len() + data_len_bytes as usize, 0xab);
    out
}

fn submit(queue: &mut HostQueue, opcode: u8, len_bytes: u32) -> u16 {
    let mut command = Command::new(opcode, 1, [0; 6]);
    command.sgl = Sgl::Transport { len_bytes };
    let cid = queue.submit(command, false, Time::from_ns(100), &mut Vec::new());
    cid.expect("room")
}

fn completion(cid: u16) -> Pdu {
    Pdu::Response(Completion {
        result: 0,
        head: 0,
        queue_id: 0,
        cid,
        status: Status::SUCCESS,
    })
}

fn data(cid: u16, offset_bytes: u32, len_bytes: u32) -> DataHeader {
    DataHeader {
        cid,
        ttag: 0,
        offset_bytes,
        len_bytes,
        is_last: false,
        is_success: false,
    }
}

/// The last data of a command, as their sender says.
fn last(cid: u16, offset_bytes: u32, len_bytes: u32) -> DataHeader {
    DataHeader {
        is_last: true,
        ..data(cid, offset_bytes, len_bytes)
    }
}

fn r2t(cid: u16, offset_bytes: u32, len_bytes: u32) -> Pdu {
    Pdu::R2t(R2t {
        cid,
        ttag: 9,
        offset_bytes,
        len_bytes,
    })
}

/// How a queue with a read and a write of 8 KiB in flight ends on `pdu`.
fn fault_of(pdu: impl Fn(u16, u16) -> Pdu) -> Result<(), WireFault> {
    let mut queue = open_queue();
    let read = submit(&mut queue, io::READ, 8192);
    let write = submit(&mut queue, io::WRITE, 8192);
    let pdu = pdu(read, write);
    let len = match pdu {
        Pdu::C2hData(header) => header.len_bytes,
        _ => 0,
    };
    let bytes = bytes_of(&pdu, len);
    let mut input = &bytes[..];
    loop {
        if queue.step(&mut input)? == HostStep::NeedBytes {
            return Ok(());
        }
    }
}

#[test]
fn what_a_controller_may_not_say() {
    let kind = PduKind::C2hData;
    let bad = |at| Err(WireFault::BadField { kind, at });
    let beyond = |at| Err(WireFault::DataOutOfRange { kind, at });
    assert_eq!(
        fault_of(|read, _| Pdu::C2hData(last(read, 0, 8192))),
        Ok(())
    );
    assert_eq!(
        fault_of(|read, _| Pdu::C2hData(data(read, 0, 4096))),
        Ok(())
    );
    // The last data say so.
    assert_eq!(
        fault_of(|read, _| Pdu::C2hData(data(read, 0, 8192))),
        bad(1)
    );
    assert_eq!(
        fault_of(|read, _| Pdu::C2hData(data(read, 0, 8193))),
        beyond(16)
    );
    assert_eq!(
        fault_of(|read, _| Pdu::C2hData(data(read, 1, 8))),
        beyond(12)
    );
    assert_eq!(fault_of(|_, write| Pdu::C2hData(data(write, 0, 8))), bad(8));
    assert_eq!(
        fault_of(|read, _| Pdu::C2hData(data(read ^ 0x400, 0, 8))),
        bad(8)
    );
    let early = |read, _| {
        Pdu::C2hData(DataHeader {
            is_last: true,
            is_success: true,
            ..data(read, 0, 8)
        })
    };
    assert_eq!(fault_of(early), bad(1));
    let kind = PduKind::R2t;
    let bad = |at| Err(WireFault::BadField { kind, at });
    let beyond = |at| Err(WireFault::DataOutOfRange { kind, at });
    assert_eq!(fault_of(|_, write| r2t(write, 0, 8192)), Ok(()));
    assert_eq!(fault_of(|_, write| r2t(write, 0, 8193)), beyond(16));
    assert_eq!(fault_of(|_, write| r2t(write, 0, u32::MAX)), beyond(16));
    assert_eq!(fault_of(|_, write| r2t(write, 512, 512)), beyond(12));
    assert_eq!(fault_of(|read, _| r2t(read, 0, 512)), bad(8));
    let unknown = Err(WireFault::BadField {
        kind: PduKind::CapsuleResp,
        at: 20,
    });
    assert_eq!(fault_of(|read, _| completion(read ^ 0x400)), unknown);
    let twice = Err(WireFault::Unexpected {
        kind: PduKind::IcResp,
    });
    let response = IcResp {
        version: 0,
        align_dwords: 0,
        digests: Digests::NONE,
        h2c_data_bytes_max: 4096,
    };
    assert_eq!(fault_of(|_, _| Pdu::IcResp(response)), twice);
    let request = TermReq {
        status: 1,
        information: 2,
    };
    let terminated = Err(WireFault::Terminated(request));
    assert_eq!(fault_of(|_, _| Pdu::C2hTermReq(request)), terminated);
}

/// What a queue with a read of 8 KiB in flight says to these PDUs, up to the first fault.
fn end_of_read(pdus: impl Fn(u16) -> Vec<Pdu>) -> Result<bool, WireFault> {
    let mut queue = open_queue();
    let read = submit(&mut queue, io::READ, 8192);
    let mut has_completed = false;
    for pdu in pdus(read) {
        let len = match pdu {
            Pdu::C2hData(header) => header.len_bytes,
            _ => 0,
        };
        let bytes = bytes_of(&pdu, len);
        let mut input = &bytes[..];
        loop {
            match queue.step(&mut input)? {
                HostStep::NeedBytes => break,
                HostStep::Completed { .. } => has_completed = true,
                _ => {}
            }
        }
    }
    Ok(has_completed)
}

fn failed(cid: u16) -> Pdu {
    match completion(cid) {
        Pdu::Response(completion) => Pdu::Response(Completion {
            status: Status::INTERNAL_ERROR,
            ..completion
        }),
        other => other,
    }
}

#[test]
fn a_read_succeeds_with_all_its_data_and_nothing_comes_after_the_last() {
    let out_of_place = |kind| Err(WireFault::Unexpected { kind });
    let (part, rest) = (
        |cid| Pdu::C2hData(data(cid, 0, 4096)),
        |cid| Pdu::C2hData(last(cid, 4096, 4096)),
    );
    let said_to_be_all = |cid| Pdu::C2hData(last(cid, 0, 4096));
    let ends = |pdus: &dyn Fn(u16) -> Vec<Pdu>| end_of_read(pdus);
    assert_eq!(ends(&|c| vec![part(c), rest(c), completion(c)]), Ok(true));
    // A success without all data.
    let response = out_of_place(PduKind::CapsuleResp);
    assert_eq!(ends(&|c| vec![completion(c)]), response);
    assert_eq!(ends(&|c| vec![part(c), completion(c)]), response);
    assert_eq!(ends(&|c| vec![said_to_be_all(c), completion(c)]), response);
    // A failure needs none.
    assert_eq!(ends(&|c| vec![failed(c)]), Ok(true));
    assert_eq!(ends(&|c| vec![part(c), failed(c)]), Ok(true));
    assert_eq!(ends(&|c| vec![said_to_be_all(c), failed(c)]), Ok(true));
    // Data after the last.
    let data = out_of_place(PduKind::C2hData);
    assert_eq!(ends(&|c| vec![said_to_be_all(c), rest(c)]), data);
    assert_eq!(ends(&|c| vec![part(c), rest(c), rest(c)]), data);
    // A success in place of a completion is said with all data, and said once.
    let skipping = |offset_bytes, len_bytes| {
        move |cid| {
            Pdu::C2hData(DataHeader {
                is_success: true,
                ..last(cid, offset_bytes, len_bytes)
            })
        }
    };
    assert_eq!(ends(&|c| vec![part(c), skipping(4096, 4096)(c)]), Ok(true));
    let flags = Err(WireFault::BadField {
        kind: PduKind::C2hData,
        at: 1,
    });
    assert_eq!(ends(&|c| vec![part(c), skipping(4096, 4095)(c)]), flags);
    let unknown = Err(WireFault::BadField {
        kind: PduKind::CapsuleResp,
        at: 20,
    });
    assert_eq!(
        ends(&|c| vec![skipping(0, 8192)(c), completion(c)]),
        unknown
    );
}

/// A queue of 8 entries that is connected: its Connect has told this head.
fn connected(without_flow_control: bool, head: u16) -> Result<HostQueue, WireFault> {
    let mut queue = open_queue();
    let connect = Connect {
        format: 0,
        queue_id: 1,
        entries_less_one: 7,
        without_flow_control,
        keep_alive_ms: 0,
    };
    let cid = queue.submit(connect.command(), false, Time::MAX, &mut Vec::new());
    tell(&mut queue, cid.expect("room"), head)?;
    Ok(queue)
}

/// Has a command succeed with this head.
fn tell(queue: &mut HostQueue, cid: u16, head: u16) -> Result<(), WireFault> {
    let completion = Completion {
        result: 0,
        head,
        queue_id: 0,
        cid,
        status: Status::SUCCESS,
    };
    let bytes = bytes_of(&Pdu::Response(completion), 0);
    let step = queue.step(&mut &bytes[..])?;
    assert!(matches!(step, HostStep::Completed { cid: of, .. } if of == cid));
    Ok(())
}

#[test]
fn heads_are_those_of_what_was_sent() {
    let none = HEAD_WITHOUT_FLOW_CONTROL;
    let bad = Some(WireFault::BadField {
        kind: PduKind::CapsuleResp,
        at: 16,
    });
    let connects = |without_flow_control, head| connected(without_flow_control, head).err();
    assert_eq!(connects(true, none), None);
    assert_eq!(connects(true, 1), None, "a controller may insist");
    assert_eq!(connects(false, 1), None);
    assert_eq!(connects(false, none), bad);
    for head in [0, 2, 7, 8, 9] {
        assert_eq!(connects(false, head), bad, "{head}");
        assert_eq!(connects(true, head), bad, "{head}");
    }
    for (head, fault) in [
        (1, bad),
        (2, None),
        (3, None),
        (4, bad),
        (8, bad),
        (none, bad),
    ] {
        let mut queue = connected(false, 1).expect("an honest head");
        let cids = [(); 2].map(|()| submit(&mut queue, io::FLUSH, 0));
        assert_eq!(tell(&mut queue, cids[1], head).err(), fault, "{head}");
    }
    // Where heads were done without they may be anything: some controllers leave them 0.
    for head in [0, 1, 9, none] {
        let mut queue = connected(true, none).expect("an honest head");
        let cid = submit(&mut queue, io::FLUSH, 0);
        assert_eq!(tell(&mut queue, cid, head), Ok(()));
    }
}

#[test]
fn a_late_answer_does_not_end_the_next_command_of_its_slot() {
    let mut queue = open_queue();
    let first = submit(&mut queue, io::FLUSH, 0);
    let bytes = bytes_of(&completion(first), 0);
    let step = queue.step(&mut &bytes[..]);
    assert!(matches!(step, Ok(HostStep::Completed { cid, .. }) if cid == first));
    let second = submit(&mut queue, io::FLUSH, 0);
    assert_eq!(HostQueue::slot_of(first), HostQueue::slot_of(second));
    assert_ne!(first, second);
    assert!(queue.step(&mut &bytes[..]).is_err());
}

#[test]
fn the_queue_is_full_at_its_limit() {
    let mut queue = open_queue();
    let cids: Vec<u16> = (0..4).map(|_| submit(&mut queue, io::FLUSH, 0)).collect();
    assert!(queue.is_full());
    let mut out = Vec::new();
    let refused = queue.submit(
        Command::new(io::FLUSH, 1, [0; 6]),
        false,
        Time::MAX,
        &mut out,
    );
    assert_eq!((refused, out.len()), (Err(QueueFull), 0));
    let bytes = bytes_of(&completion(cids[2]), 0);
    queue.step(&mut &bytes[..]).expect("an honest answer");
    assert!(!queue.is_full());
}

#[test]
fn deadlines_give_up_and_then_tell_that_nothing_moves() {
    let mut queue = open_queue();
    let cid = submit(&mut queue, io::READ, 512);
    assert_eq!(queue.poll_timeout(), Some(Time::from_ns(100)));
    let grace = Duration::from_nanos(50);
    let mut expired = Vec::new();
    queue.expire(Time::from_ns(99), grace, &mut expired);
    assert_eq!(expired, []);
    queue.expire(Time::from_ns(100), grace, &mut expired);
    queue.expire(Time::from_ns(149), grace, &mut expired);
    queue.expire(Time::from_ns(150), grace, &mut expired);
    queue.expire(Time::MAX, grace, &mut expired);
    let once = |is_stuck| Expired {
        cid,
        must_fence: false,
        is_stuck,
    };
    assert_eq!(expired[..2], [once(false), once(true)]);
    assert_eq!(queue.give_up(cid), GiveUp::Over);
    assert_eq!(queue.in_flight(), 1, "its slot is taken until it completes");
}

#[test]
fn data_that_went_with_their_command_are_not_asked_for() {
    for (offset_bytes, at) in [(0, 12), (8, 16)] {
        let mut queue = open_queue();
        let mut command = Command::new(io::WRITE, 1, [0; 6]);
        command.sgl = Sgl::Transport { len_bytes: 8 };
        let cid = queue.submit(command, true, Time::MAX, &mut Vec::new());
        let bytes = bytes_of(&r2t(cid.expect("room"), offset_bytes, 8), 0);
        let kind = PduKind::R2t;
        let step = queue.step(&mut &bytes[..]);
        assert_eq!(step, Err(WireFault::DataOutOfRange { kind, at }));
    }
}

#[test]
fn memory_that_is_lent_is_fenced() {
    let mut queue = open_queue();
    let cid = submit(&mut queue, io::READ, 512);
    let header = bytes_of(&Pdu::C2hData(last(cid, 0, 512)), 512);
    let step = queue.step(&mut &header[..24]);
    assert!(matches!(
        step,
        Ok(HostStep::NeedData { len_bytes: 512, .. })
    ));
    assert_eq!(queue.give_up(cid), GiveUp::MustFence);
    assert_eq!(queue.step(&mut &[][..]), Ok(HostStep::NeedBytes));
    let mut rest = &header[24..];
    assert_eq!(
        queue.step(&mut rest),
        Ok(HostStep::NeedBytes),
        "nobody is given the data"
    );
    assert!(rest.is_empty());
    let bytes = bytes_of(&completion(cid), 0);
    let step = queue.step(&mut &bytes[..]);
    assert!(matches!(step, Ok(HostStep::Completed { .. })));
}

#[test]
fn a_transfer_is_one_pdu_where_the_limit_allows_it() {
    let mut queue = open_queue();
    let cid = submit(&mut queue, io::WRITE, 8193);
    let bytes = bytes_of(&r2t(cid, 0, 8193), 0);
    let mut input = &bytes[..];
    let mut pieces = Vec::new();
    while let Ok(HostStep::Send(transfer)) = queue.step(&mut input) {
        pieces.push((transfer.offset_bytes, transfer.len_bytes, transfer.is_last));
    }
    assert_eq!(
        pieces,
        [(0, 4096, false), (4096, 4096, false), (8192, 1, true)]
    );
}

/// A queue in one of its states, with a read, a write and a flush in flight where it may be.
fn in_state(state: State) -> (HostQueue, [u16; 3]) {
    let mut queue = match state {
        State::Idle | State::AwaitingIcResp => HostQueue::new(OPTIONS),
        State::Open | State::Ended => open_queue(),
    };
    if state == State::AwaitingIcResp {
        queue.start(&mut Vec::new());
    }
    let mut cids = [0; 3];
    if queue.state == State::Open {
        let commands = [(io::READ, 8), (io::WRITE, 8), (io::FLUSH, 0)];
        cids = commands.map(|(opcode, len_bytes)| submit(&mut queue, opcode, len_bytes));
    }
    if state == State::Ended {
        queue.end(WireFault::Truncated);
    }
    (queue, cids)
}

/// What a controller says of each kind about these commands.
fn said(kind: PduKind, [read, write, flush]: [u16; 3]) -> Pdu {
    let request = TermReq {
        status: 1,
        information: 2,
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
        PduKind::CapsuleResp => completion(flush),
        PduKind::H2cData => Pdu::H2cData(last(write, 0, 8)),
        PduKind::C2hData => Pdu::C2hData(last(read, 0, 8)),
        PduKind::R2t => r2t(write, 0, 8),
    }
}

#[test]
fn every_state_answers_every_pdu() {
    let mut table = String::new();
    for state in [
        State::Idle,
        State::AwaitingIcResp,
        State::Open,
        State::Ended,
    ] {
        table += &format!("{state:?}:");
        for kind in PduKind::ALL {
            let (mut queue, cids) = in_state(state);
            assert_eq!(queue.state, state);
            let pdu = said(kind, cids);
            let len = match pdu {
                Pdu::C2hData(header) | Pdu::H2cData(header) => header.len_bytes,
                _ => 0,
            };
            let bytes = bytes_of(&pdu, len);
            let step = queue.step(&mut &bytes[..]);
            let step = step.map_or_else(|fault| format!("{fault:?}"), |step| format!("{step:?}"));
            let name = step.split([' ', '(']).next().unwrap_or_default();
            table += &format!(" {name}>{:?}", queue.state);
        }
        table += "\n";
    }
    // Columns as in `PduKind::ALL`.
    assert_eq!(
        table,
        "Idle: Unexpected>Ended Unexpected>Ended Unexpected>Ended Terminated>Ended Unexpected>Ended \
         Unexpected>Ended Unexpected>Ended Unexpected>Ended Unexpected>Ended\n\
         AwaitingIcResp: Unexpected>Ended Open>Open Unexpected>Ended Terminated>Ended Unexpected>Ended \
         Unexpected>Ended Unexpected>Ended Unexpected>Ended Unexpected>Ended\n\
         Open: Unexpected>Ended Unexpected>Ended Unexpected>Ended Terminated>Ended Unexpected>Ended \
         Completed>Open Unexpected>Ended Data>Open Send>Open\n\
         Ended: Truncated>Ended Truncated>Ended Truncated>Ended Truncated>Ended Truncated>Ended \
         Truncated>Ended Truncated>Ended Truncated>Ended Truncated>Ended\n"
    );
}

#[test]
fn a_connection_may_end_between_commands_and_nowhere_else() {
    for (state, ends_well) in [
        (State::Idle, true),
        (State::AwaitingIcResp, true),
        (State::Open, false),
        (State::Ended, false),
    ] {
        assert_eq!(in_state(state).0.on_eof().is_ok(), ends_well, "{state:?}");
    }
    assert_eq!(open_queue().on_eof(), Ok(()));
}
