//! Headers of every kind, and what is wrong with others.

use super::*;
use crate::command::io;
use crate::completion::Status;

const BOTH: Framing = Framing {
    digests: Digests::BOTH,
    align_dwords: 0,
};

/// One PDU of each kind, with data where they may have some.
fn samples() -> Vec<(Pdu, u32)> {
    let data = DataHeader {
        cid: 1,
        ttag: 2,
        offset_bytes: 3,
        len_bytes: 8,
        is_last: true,
        is_success: false,
    };
    let request = TermReq {
        status: 4,
        information: 12,
    };
    let completion = Completion {
        result: 7,
        head: 1,
        queue_id: 0,
        cid: 5,
        status: Status::INVALID_FIELD,
    };
    vec![
        (
            Pdu::IcReq(IcReq {
                version: 0,
                align_dwords: 31,
                digests: Digests::BOTH,
                r2t_max: 3,
            }),
            0,
        ),
        (
            Pdu::IcResp(IcResp {
                version: 0,
                align_dwords: 1,
                digests: Digests::NONE,
                h2c_data_bytes_max: H2C_DATA_BYTES_MIN,
            }),
            0,
        ),
        (Pdu::H2cTermReq(request), 0),
        (Pdu::C2hTermReq(request), 0),
        (Pdu::Command(Command::new(io::READ, 1, [1; 6])), 0),
        (Pdu::Command(Command::new(io::WRITE, 1, [2; 6])), 8),
        (Pdu::Response(completion), 0),
        (Pdu::H2cData(data), 8),
        (Pdu::C2hData(data), 8),
        (
            Pdu::R2t(R2t {
                cid: 1,
                ttag: 2,
                offset_bytes: 0,
                len_bytes: 4096,
            }),
            0,
        ),
    ]
}

fn framings() -> impl Iterator<Item = Framing> {
    [0, 1, 31].into_iter().flat_map(|align_dwords| {
        [Digests::NONE, Digests::BOTH].map(|digests| Framing {
            digests,
            align_dwords,
        })
    })
}

fn encoded(framing: Framing, pdu: &Pdu, data_len_bytes: u32) -> Vec<u8> {
    let mut out = Vec::new();
    framing.append_header(&mut out, pdu, data_len_bytes);
    out
}

#[test]
fn every_kind_comes_back_as_it_was_sent_under_every_framing() {
    for framing in framings() {
        for (pdu, data_len_bytes) in samples() {
            let bytes = encoded(framing, &pdu, data_len_bytes);
            let headed_bytes = framing.headed_bytes(pdu.kind());
            let headed = framing.read_header(pdu.kind(), &bytes[..headed_bytes]);
            let headed = headed.expect("a good header");
            assert_eq!((headed.pdu, headed.data_len_bytes), (pdu, data_len_bytes));
            let front_bytes = headed_bytes + usize::from(headed.pad_bytes);
            assert_eq!(front_bytes, bytes.len(), "{pdu:?}");
            if data_len_bytes > 0 {
                let align_bytes = (usize::from(framing.align_dwords) + 1) * 4;
                assert!(bytes.len().is_multiple_of(align_bytes), "data are aligned");
            }
        }
    }
}

#[test]
fn golden_layout_of_an_initial_request() {
    let (pdu, _) = samples()[0];
    let bytes = encoded(Framing::INITIAL, &pdu, 0);
    assert_eq!(
        bytes[..16],
        [0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 31, 3, 3, 0, 0, 0]
    );
    assert_eq!(bytes[16..], [0; 112]);
}

#[test]
fn golden_layout_of_data_with_both_digests() {
    let (pdu, len) = samples()[7];
    let bytes = encoded(BOTH, &pdu, len);
    assert_eq!(
        bytes[..20],
        [
            6, 7, 24, 28, 40, 0, 0, 0, 1, 0, 2, 0, 3, 0, 0, 0, 8, 0, 0, 0
        ]
    );
    assert_eq!(bytes[24..28], crc32c(&bytes[..24]).to_le_bytes());
}

#[test]
fn every_flipped_bit_of_a_header_with_a_digest_is_found() {
    for (pdu, data_len_bytes) in samples() {
        if !pdu.kind().has_digests() {
            continue;
        }
        let bytes = encoded(BOTH, &pdu, data_len_bytes);
        let headed_bytes = BOTH.headed_bytes(pdu.kind());
        for bit in 0..headed_bytes * 8 {
            let mut damaged = bytes[..headed_bytes].to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let fault = BOTH.read_header(pdu.kind(), &damaged);
            assert!(
                matches!(fault, Err(WireFault::HeaderDigest { .. })),
                "bit {bit} of {pdu:?}"
            );
        }
    }
}

#[test]
fn each_field_that_is_wrong_is_named() {
    let plain = Framing::INITIAL;
    // Sample, byte, its value, and where the field lies that is named.
    for (sample, at, value, named) in [
        (0, 10, 32, 10),
        (1, 13, 0, 12),
        (1, 10, 32, 10),
        (4, 4, 71, 4),
        (4, 1, 1, 1),
        (5, 3, 70, 3),
        (5, 3, 68, 3),
        (5, 1, 2, 1),
        (6, 4, 25, 4),
        (7, 3, 23, 3),
        (7, 4, 24, 4),
        (7, 16, 9, 16),
        (8, 1, 8, 1),
        (8, 3, 0, 3),
        (9, 17, 0, 16),
        (2, 4, 23, 4),
        (3, 4, 153, 4),
    ] {
        let (pdu, data_len_bytes) = samples()[sample];
        let mut bytes = encoded(plain, &pdu, data_len_bytes);
        bytes[at] = value;
        let kind = pdu.kind();
        let read = plain.read_header(kind, &bytes[..plain.headed_bytes(kind)]);
        let expected = WireFault::BadField { kind, at: named };
        assert_eq!(read, Err(expected), "{kind:?} {at}");
    }
}

#[test]
fn lengths_cannot_wrap() {
    let (pdu, len) = samples()[7];
    let mut bytes = encoded(Framing::INITIAL, &pdu, len);
    for len in [0, 1, 23, 24, 27, u32::MAX] {
        bytes[4..8].copy_from_slice(&len.to_le_bytes());
        assert!(
            Framing::INITIAL
                .read_header(pdu.kind(), &bytes[..24])
                .is_err()
        );
    }
}

#[test]
fn faults_say_what_to_say() {
    let kind = PduKind::H2cData;
    let cases = [
        (WireFault::UnknownKind { found: 8 }, Some((1, 0))),
        (WireFault::BadField { kind, at: 4 }, Some((1, 4))),
        (WireFault::Unexpected { kind }, Some((2, 0))),
        (
            WireFault::HeaderDigest {
                received: 9,
                computed: 8,
            },
            Some((3, 9)),
        ),
        (WireFault::DataOutOfRange { kind, at: 12 }, Some((4, 12))),
        (WireFault::LimitExceeded { kind }, Some((5, 0))),
        (WireFault::Unsupported { kind, at: 8 }, Some((6, 8))),
        (WireFault::Truncated, None),
    ];
    for (fault, said) in cases {
        let request = fault.term_req().map(|r| (r.status, r.information));
        assert_eq!(request, said, "{fault}");
    }
}
