//! What a controller answers to a host that does not keep to the rules.

use super::*;
use crate::command::io;

const OPTIONS: ControllerOptions = ControllerOptions {
    digests: Digests::BOTH,
    h2c_data_bytes_max: 4096,
    r2t_bytes_max: 6000,
    in_capsule_bytes_max: 64,
};

fn bytes_of(pdu: &Pdu, data_len_bytes: u32) -> Vec<u8> {
    let mut out = Vec::new();
    Framing::INITIAL.append_header(&mut out, pdu, data_len_bytes);
    out.resize(out.len() + data_len_bytes as usize, 0xab);
    out
}

fn open_queue(r2t_max: u32) -> ControllerQueue {
    let mut queue = ControllerQueue::new(OPTIONS);
    let request = IcReq {
        version: 0,
        align_dwords: 0,
        digests: Digests::NONE,
        r2t_max: r2t_max - 1,
    };
    let bytes = bytes_of(&Pdu::IcReq(request), 0);
    let step = queue.step(&mut &bytes[..], &mut Vec::new());
    assert_eq!(step, Ok(ControllerStep::Open(request)));
    queue.connect(4, true);
    queue
}

fn command(opcode: u8, cid: u16, sgl: Sgl) -> Command {
    Command {
        cid,
        sgl,
        ..Command::new(opcode, 1, [0; 6])
    }
}

fn take(queue: &mut ControllerQueue, command: Command) -> u16 {
    let bytes = bytes_of(&Pdu::Command(command), 0);
    match queue.step(&mut &bytes[..], &mut Vec::new()) {
        Ok(ControllerStep::Command { slot, .. }) => slot,
        other => panic!("{other:?}"),
    }
}

fn data(ttag: u16, offset_bytes: u32, len_bytes: u32, is_last: bool) -> DataHeader {
    DataHeader {
        cid: 7,
        ttag,
        offset_bytes,
        len_bytes,
        is_last,
        is_success: false,
    }
}

/// The R2Ts that were appended.
fn requests(out: &[u8]) -> Vec<(u16, u32, u32)> {
    let word = |bytes: &[u8], at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let dword =
        |bytes: &[u8], at: usize| u32::from(word(bytes, at)) | u32::from(word(bytes, at + 2)) << 16;
    let pdus = out.chunks(24).map(|pdu| {
        assert_eq!(pdu[0], PduKind::R2t.to_wire());
        (word(pdu, 10), dword(pdu, 12), dword(pdu, 16))
    });
    pdus.collect()
}

/// A queue that waits for the data of a write of 10,000 bytes, in two requests.
fn waiting(r2t_max: u32) -> (ControllerQueue, Vec<(u16, u32, u32)>) {
    let mut queue = open_queue(r2t_max);
    let transport = Sgl::Transport { len_bytes: 10_000 };
    let slot = take(&mut queue, command(io::WRITE, 7, transport));
    let mut out = Vec::new();
    queue.request_data(slot, &mut out);
    (queue, requests(&out))
}

#[test]
fn data_are_asked_for_as_the_host_can_take_it() {
    for (r2t_max, at_once) in [(1, 1), (2, 2), (u32::MAX, 2)] {
        let (mut queue, mut asked) = waiting(r2t_max);
        assert_eq!(asked.len(), at_once);
        let mut out = Vec::new();
        let ttag = asked[0].0;
        for (offset, len, is_last) in [(0, 4096, false), (4096, 1904, true)] {
            let bytes = bytes_of(&Pdu::H2cData(data(ttag, offset, len, is_last)), len);
            let mut input = &bytes[..];
            while queue.step(&mut input, &mut out) != Ok(ControllerStep::NeedBytes) {}
        }
        asked.extend(requests(&out));
        let ranges: Vec<(u32, u32)> = asked.iter().map(|r| (r.1, r.2)).collect();
        assert_eq!(ranges, [(0, 6000), (6000, 4000)]);
        assert_ne!(asked[0].0, asked[1].0, "requests are told apart");
        let bytes = bytes_of(&Pdu::H2cData(data(asked[1].0, 6000, 4000, true)), 4000);
        let mut input = &bytes[..];
        let data = queue.step(&mut input, &mut out);
        assert!(matches!(
            data,
            Ok(ControllerStep::Data {
                offset_bytes: 6000,
                ..
            })
        ));
        let end = queue.step(&mut input, &mut out);
        assert!(matches!(
            end,
            Ok(ControllerStep::DataEnd {
                is_intact: true,
                ..
            })
        ));
    }
}

#[test]
fn what_a_host_may_not_send() {
    let kind = PduKind::H2cData;
    let bad = |at| Err(WireFault::BadField { kind, at });
    let beyond = |at| Err(WireFault::DataOutOfRange { kind, at });
    let fault_of = |change: fn(DataHeader) -> DataHeader| {
        let (mut queue, asked) = waiting(1);
        let header = change(data(asked[0].0, 0, 4096, false));
        let bytes = bytes_of(&Pdu::H2cData(header), header.len_bytes);
        queue.step(&mut &bytes[..], &mut Vec::new()).map(drop)
    };
    assert_eq!(fault_of(|header| header), Ok(()));
    assert_eq!(
        fault_of(|h| DataHeader {
            ttag: h.ttag ^ 1,
            ..h
        }),
        bad(10)
    );
    assert_eq!(fault_of(|h| DataHeader { ttag: 0x3ff, ..h }), bad(10));
    assert_eq!(
        fault_of(|h| DataHeader {
            ttag: h.ttag ^ 0x400,
            ..h
        }),
        bad(10)
    );
    assert_eq!(fault_of(|h| DataHeader { cid: 8, ..h }), bad(8));
    assert_eq!(
        fault_of(|h| DataHeader {
            offset_bytes: 1,
            ..h
        }),
        beyond(12)
    );
    assert_eq!(
        fault_of(|h| DataHeader {
            offset_bytes: u32::MAX,
            ..h
        }),
        beyond(12)
    );
    assert_eq!(fault_of(|h| DataHeader { is_last: true, ..h }), bad(1));
    let too_long = Err(WireFault::LimitExceeded { kind });
    assert_eq!(
        fault_of(|h| DataHeader {
            len_bytes: 4097,
            ..h
        }),
        too_long
    );
}

#[test]
fn data_end_where_what_was_asked_for_ends_and_say_so() {
    let kind = PduKind::H2cData;
    let bad = Err(WireFault::BadField { kind, at: 1 });
    let beyond = Err(WireFault::DataOutOfRange { kind, at: 16 });
    // The first request is for 6000 bytes, and the first 4096 of them have come.
    for (len_bytes, is_last, ends) in [
        (1904, true, Ok(())),
        (1903, false, Ok(())),
        (1904, false, bad),
        (1903, true, bad),
        (1905, true, beyond),
        (1905, false, beyond),
    ] {
        let (mut queue, asked) = waiting(1);
        let ttag = asked[0].0;
        let mut bytes = bytes_of(&Pdu::H2cData(data(ttag, 0, 4096, false)), 4096);
        let second = Pdu::H2cData(data(ttag, 4096, len_bytes, is_last));
        bytes.extend(bytes_of(&second, len_bytes));
        let mut input = &bytes[..];
        let ended = loop {
            match queue.step(&mut input, &mut Vec::new()) {
                Ok(ControllerStep::NeedBytes) => break Ok(()),
                Ok(_) => {}
                Err(fault) => break Err(fault),
            }
        };
        assert_eq!(ended, ends, "{len_bytes} {is_last}");
    }
}

#[test]
fn commands_are_bounded_in_number_and_in_data() {
    let kind = PduKind::CapsuleCmd;
    let mut queue = open_queue(1);
    for cid in 0..4 {
        take(
            &mut queue,
            command(io::READ, cid, Sgl::Transport { len_bytes: 8 }),
        );
    }
    let bytes = bytes_of(&Pdu::Command(command(io::READ, 9, Sgl::None)), 0);
    let fifth = queue.step(&mut &bytes[..], &mut Vec::new());
    assert_eq!(fifth, Err(WireFault::LimitExceeded { kind }));
    let mut queue = open_queue(1);
    take(&mut queue, command(io::READ, 9, Sgl::None));
    let again = queue.step(&mut &bytes[..], &mut Vec::new());
    assert_eq!(again, Err(WireFault::BadField { kind, at: 10 }));
    for (len_bytes, fits) in [(64, true), (68, false)] {
        let mut queue = open_queue(1);
        let sgl = Sgl::InCapsule {
            offset_bytes: 0,
            len_bytes,
        };
        let bytes = bytes_of(&Pdu::Command(command(io::WRITE, 1, sgl)), len_bytes);
        let step = queue.step(&mut &bytes[..], &mut Vec::new());
        assert_eq!(step.is_ok(), fits, "{len_bytes}");
    }
}

#[test]
fn a_descriptor_that_does_not_fit_ends_its_command_and_not_the_connection() {
    let in_capsule = |offset_bytes, len_bytes| Sgl::InCapsule {
        offset_bytes,
        len_bytes,
    };
    for (sgl, data_len_bytes, status) in [
        (
            Sgl::Transport { len_bytes: 16 },
            16,
            Status::DATA_LENGTH_INVALID,
        ),
        (in_capsule(0, 15), 16, Status::DATA_LENGTH_INVALID),
        (in_capsule(4, 16), 16, Status::SGL_OFFSET_INVALID),
        (in_capsule(0, 16), 0, Status::DATA_LENGTH_INVALID),
        (Sgl::Other([0x40; 16]), 0, Status::SGL_TYPE_INVALID),
    ] {
        let mut queue = open_queue(1);
        let mut out = Vec::new();
        let bytes = bytes_of(&Pdu::Command(command(io::WRITE, 3, sgl)), data_len_bytes);
        let step = queue.step(&mut &bytes[..], &mut out);
        assert_eq!(step, Ok(ControllerStep::NeedBytes));
        let completion = out[8..].first_chunk().map(Completion::decode);
        let completion = completion.expect("a completion");
        assert_eq!(
            (completion.cid, completion.status.code()),
            (3, status.code())
        );
        assert_eq!(queue.in_flight(), 0);
    }
}

#[test]
fn the_head_goes_round() {
    let mut queue = open_queue(1);
    let mut heads = Vec::new();
    for cid in 0..6 {
        let slot = take(&mut queue, command(io::FLUSH, cid, Sgl::None));
        let mut out = Vec::new();
        queue.complete(slot, Status::SUCCESS, 0, &mut out);
        heads.push(out[16]);
    }
    assert_eq!(heads, [2, 3, 0, 1, 2, 3]);
}

#[test]
fn nothing_comes_before_the_set_up_and_the_set_up_comes_once() {
    let mut queue = ControllerQueue::new(OPTIONS);
    let bytes = bytes_of(&Pdu::Command(command(io::FLUSH, 0, Sgl::None)), 0);
    let kind = PduKind::CapsuleCmd;
    let step = queue.step(&mut &bytes[..], &mut Vec::new());
    assert_eq!(step, Err(WireFault::Unexpected { kind }));
    let mut said = Vec::new();
    queue.append_term_req(&WireFault::Unexpected { kind }, &mut said);
    assert_eq!(said[..10], [3, 0, 24, 0, 32, 0, 0, 0, 2, 0]);
    assert_eq!(said[24..], bytes[..8], "it quotes what it is about");
}
