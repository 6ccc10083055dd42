//! From fuzz bytes to what a hostile peer sends.
//!
//! ```text
//!   byte 0      bits 4 and 5 are not set; bit 0: the peer is a host; bits 1, 2: digests; bit 3: it sets the connection up;
//!               bit 6: a host's queue is connected, and is told its head
//!   byte 1      number of cuts, 1..=8; then one byte for each: bits 0..7 length, bit 7 straight
//!   then        operations, each a code and its arguments; missing bytes read as 0
//! ```
//!
//! PDUs carry right digests unless an operation damages them, so that a fuzzer gets past them.

use lunette_generate::{Bytes, Source};
use lunette_nvmeof_proto::command::{Command, Sgl, admin, fabrics};
use lunette_nvmeof_proto::completion::{Completion, Status};
use lunette_nvmeof_proto::fabrics::{Configuration, Connect, ConnectData, Property};
use lunette_nvmeof_proto::nqn::Nqn;
use lunette_nvmeof_proto::pdu::{DataHeader, Digests, Framing, IcReq, IcResp, Pdu, R2t, TermReq};
use lunette_runtime_core::checksum::crc32c;

/// Most operations of a script, so that one run stays short.
const OPS_MAX: usize = 48;
/// The subsystem that the target has.
pub(super) const SUBSYSTEM: &str = "nqn.s";
/// One that it may have beside it, which is not for the peer.
pub(super) const HONEST: &str = "nqn.honest";

/// One receive: how many bytes arrive at most, and whether data go straight to their place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) len: usize,
    pub(super) is_straight: bool,
}

#[derive(Debug)]
pub(super) struct Script {
    pub(super) is_from_host: bool,
    pub(super) digests: Digests,
    /// Whether a host connects its queue first.
    pub(super) connects: bool,
    /// At least one; they repeat.
    pub(super) cuts: Vec<Cut>,
    pub(super) stream: Vec<u8>,
    /// Commands that a host gives up, each before the bytes from there on arrive.
    pub(super) given_up: Vec<(usize, u8)>,
}

/// What is drawn besides bytes.
trait Draws: Source {
    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    /// Mostly small, sometimes anything.
    fn len(&mut self) -> u32 {
        match self.u8() {
            255 => u32::from_le_bytes([self.u8(), self.u8(), self.u8(), self.u8()]),
            small @ 128.. => u32::from(small - 127) * 512,
            small => u32::from(small),
        }
    }
}

impl Draws for Bytes<'_> {}

impl Script {
    pub(super) fn read(data: &[u8]) -> Self {
        let mut source = Bytes::new(data);
        let flags = source.u8();
        let cuts = (0..1 + source.u8() % 8).map(|_| {
            let byte = source.u8();
            Cut {
                len: 1 + usize::from(byte & 0x7f),
                is_straight: byte & 0x80 != 0,
            }
        });
        let mut script = Self {
            is_from_host: flags & 1 != 0,
            digests: Digests {
                header: flags & 2 != 0,
                data: flags & 4 != 0,
            },
            connects: flags & 64 != 0,
            cuts: cuts.collect(),
            stream: Vec::new(),
            given_up: Vec::new(),
        };
        if flags & 8 == 0 {
            script.set_up();
        }
        for _ in 0..OPS_MAX {
            if source.is_spent() {
                break;
            }
            script.read_op(&mut source);
        }
        script
    }

    fn set_up(&mut self) {
        let pdu = if self.is_from_host {
            Pdu::IcReq(IcReq {
                version: 0,
                align_dwords: 1,
                digests: self.digests,
                r2t_max: 1,
            })
        } else {
            Pdu::IcResp(IcResp {
                version: 0,
                align_dwords: 0,
                digests: self.digests,
                h2c_data_bytes_max: 4096,
            })
        };
        Framing::INITIAL.append_header(&mut self.stream, &pdu, 0);
    }

    fn read_op(&mut self, source: &mut Bytes<'_>) {
        match source.u8() % 12 {
            0 => self.command(source),
            1 => self.connect(source),
            2 => {
                let command = Property::Configuration.write(Configuration::ENABLED.0);
                let cid = source.u16();
                self.append(&Pdu::Command(Command { cid, ..command }), &[]);
            }
            3 => self.data(source),
            4 => {
                let (result, cid, end) = (source.u16(), source.u16(), source.u8());
                let completion = Completion {
                    result: u64::from(result),
                    head: u16::from(end >> 1),
                    queue_id: 0,
                    cid,
                    status: Status::from_bits(u16::from(end % 2) * 6),
                };
                self.append(&Pdu::Response(completion), &[]);
            }
            5 => {
                let r2t = R2t {
                    cid: source.u16(),
                    ttag: source.u16(),
                    offset_bytes: source.len(),
                    len_bytes: source.len(),
                };
                self.append(&Pdu::R2t(r2t), &[]);
            }
            6 => {
                let request = TermReq {
                    status: source.u16(),
                    information: source.len(),
                };
                let pdu = if self.is_from_host {
                    Pdu::H2cTermReq(request)
                } else {
                    Pdu::C2hTermReq(request)
                };
                self.append(&pdu, &[]);
            }
            7 => {
                let len = usize::from(source.u8());
                let raw = source.take(len);
                self.stream.extend_from_slice(raw);
            }
            8 => {
                let back = usize::from(source.u16());
                let value = source.u8();
                let at = self.stream.len().checked_sub(back + 1);
                if let Some(byte) = at.and_then(|at| self.stream.get_mut(at)) {
                    *byte ^= value;
                }
            }
            9 => {
                let kept = self.stream.len().saturating_sub(usize::from(source.u8()));
                self.stream.truncate(kept);
            }
            10 => self.set_up(),
            _ => self.given_up.push((self.stream.len(), source.u8())),
        }
    }

    fn command(&mut self, source: &mut Bytes<'_>) {
        let (opcode, cid, nsid) = (source.u8(), source.u16(), source.u8());
        let cdw10 = [(); 6].map(|()| source.len());
        let len_bytes = source.len();
        let kind = source.u8();
        let in_capsule_bytes = if kind % 4 == 1 { len_bytes % 2048 } else { 0 };
        let sgl = match kind % 4 {
            0 => Sgl::Transport { len_bytes },
            1 => Sgl::InCapsule {
                offset_bytes: u64::from(kind >> 7),
                len_bytes: in_capsule_bytes,
            },
            2 => Sgl::None,
            _ => Sgl::Other([kind; 16]),
        };
        let opcode = if opcode > 0xf0 {
            admin::FABRICS
        } else {
            opcode % 0x20
        };
        let command = Command {
            cid,
            sgl,
            ..Command::new(opcode, u32::from(nsid), cdw10)
        };
        self.append(
            &Pdu::Command(command),
            &vec![kind; in_capsule_bytes as usize],
        );
    }

    fn connect(&mut self, source: &mut Bytes<'_>) {
        let (cid, what) = (source.u16(), source.u8());
        let queue_id = u16::from(what & 3);
        let connect = Connect {
            format: 0,
            queue_id,
            entries_less_one: u16::from(source.u8()),
            without_flow_control: what & 4 != 0,
            keep_alive_ms: u32::from(what & 8),
        };
        let name = if what & 16 != 0 {
            Nqn::discovery()
        } else if cid >> 15 == 1 {
            Nqn::new(HONEST).expect("a name")
        } else {
            Nqn::new(SUBSYSTEM).expect("a name")
        };
        let data = ConnectData {
            host_id: [0; 16],
            controller_id: if queue_id == 0 {
                0xffff
            } else {
                u16::from(what >> 5)
            },
            subsystem: name,
            host: Nqn::new("nqn.h").expect("a name"),
        };
        let data = data.encode();
        let mut command = connect.command();
        command.cid = cid;
        command.sgl = Sgl::InCapsule {
            offset_bytes: 0,
            len_bytes: u32::try_from(data.len()).expect("short"),
        };
        assert_eq!(command.fabrics_type(), Some(fabrics::CONNECT));
        self.append(&Pdu::Command(command), &data);
    }

    fn data(&mut self, source: &mut Bytes<'_>) {
        let (cid, ttag, flags) = (source.u16(), source.u16(), source.u8());
        let offset_bytes = source.len();
        let len_bytes = 1 + source.len() % 8192;
        let header = DataHeader {
            cid,
            ttag,
            offset_bytes,
            len_bytes,
            is_last: flags & 1 != 0,
            is_success: flags & 2 != 0 && !self.is_from_host,
        };
        let pdu = if self.is_from_host {
            Pdu::H2cData(header)
        } else {
            Pdu::C2hData(header)
        };
        self.append(&pdu, &vec![flags; len_bytes as usize]);
    }

    fn append(&mut self, pdu: &Pdu, data: &[u8]) {
        let framing = Framing {
            digests: self.digests,
            align_dwords: 0,
        };
        let len_bytes = u32::try_from(data.len()).expect("data are short");
        framing.append_header(&mut self.stream, pdu, len_bytes);
        if !data.is_empty() {
            self.stream.extend_from_slice(data);
            framing.append_data_digest(&mut self.stream, || crc32c(data));
        }
    }
}
