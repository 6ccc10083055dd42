//! However the bytes of a stream are cut and wherever its payloads are received, the same frames,
//! payload bytes and verdicts come out; damage is found.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use lunette_runtime_core::checksum::crc32c;
    use lunette_runtime_core::ids::RequestId;
    use lunette_transfer_proto::frame::{
        FrameFault, FrameHeader, FrameKind, HEADER_BYTES, PayloadDigest, encode_frame,
    };
    use lunette_transfer_proto::receiver::{
        PayloadVerdict, Receiver, ReceiverLimits, Step, WireFault,
    };
    use proptest::prelude::*;
    use proptest::sample::Index;

    const LIMITS: ReceiverLimits = ReceiverLimits {
        body_bytes_max: 300,
        payload_bytes_max: 500,
    };

    /// A frame that was sent or received, its payload with the verdict.
    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Frame {
        kind: FrameKind,
        code: u16,
        id: u64,
        body: Vec<u8>,
        payload: Vec<u8>,
        is_intact: bool,
    }

    impl Frame {
        fn append_to(&self, out: &mut Vec<u8>) {
            let len_bytes = u32::try_from(self.payload.len()).unwrap();
            let digest = PayloadDigest {
                len_bytes,
                crc32c: crc32c(&self.payload),
            };
            let id = RequestId(self.id);
            encode_frame(out, self.kind, self.code, id, &self.body, Some(digest));
            out.extend_from_slice(&self.payload);
        }

        fn len_bytes(&self) -> usize {
            HEADER_BYTES + self.body.len() + self.payload.len()
        }
    }

    fn frame() -> impl Strategy<Value = Frame> {
        let kind = prop::sample::select(&FrameKind::ALL[..]);
        let body = prop::collection::vec(any::<u8>(), 0..=300);
        let payload = prop_oneof![
            Just(Vec::new()),
            prop::collection::vec(any::<u8>(), 0..=500)
        ];
        (kind, any::<u16>(), any::<u64>(), body, payload).prop_map(
            |(kind, code, id, body, mut payload)| {
                if !kind.may_carry_payload() {
                    payload.clear();
                }
                Frame {
                    kind,
                    code,
                    id,
                    body,
                    payload,
                    is_intact: true,
                }
            },
        )
    }

    fn frames() -> impl Strategy<Value = Vec<Frame>> {
        prop::collection::vec(frame(), 1..8)
    }

    fn stream_of(frames: &[Frame]) -> Vec<u8> {
        let mut out = Vec::new();
        frames.iter().for_each(|frame| frame.append_to(&mut out));
        out
    }

    /// One receive of the driver: how many bytes arrive, and whether payload goes straight in.
    #[derive(Clone, Copy, Debug)]
    struct Cut {
        len_bytes: usize,
        straight: bool,
    }

    fn cuts() -> impl Strategy<Value = Vec<Cut>> {
        let cut = (prop_oneof![1..4_usize, 1..700_usize], any::<bool>()).prop_map(
            |(len_bytes, straight)| Cut {
                len_bytes,
                straight,
            },
        );
        prop::collection::vec(cut, 1..40)
    }

    /// A driver over a stream in memory: the frames it received, and how the stream ended.
    struct Driver<'a> {
        receiver: Receiver,
        stream: &'a [u8],
        received: Vec<Frame>,
        payload: Vec<u8>,
    }

    impl<'a> Driver<'a> {
        fn run(stream: &'a [u8], cuts: &[Cut]) -> (Vec<Frame>, Result<(), WireFault>) {
            let receiver = Receiver::new(LIMITS);
            let mut driver = Self {
                receiver,
                stream,
                received: Vec::new(),
                payload: Vec::new(),
            };
            let mut cuts = cuts.iter().copied().cycle();
            let ended = loop {
                let cut = cuts.next().expect("cuts are not empty");
                let arrived = driver.receive(cut);
                if let Err(fault) = driver.step_through(arrived, cut) {
                    assert_eq!(driver.receiver.step(&mut &[0_u8; 99][..]), Err(fault));
                    assert_eq!(driver.receiver.on_payload(&[1]), Err(fault));
                    assert_eq!(driver.receiver.on_eof(), Err(fault));
                    break Err(fault);
                }
                if driver.stream.is_empty() {
                    break driver.receiver.on_eof();
                }
            };
            assert!(driver.receiver.control_bytes() <= LIMITS.body_bytes_max as usize);
            (driver.received, ended)
        }

        fn receive(&mut self, cut: Cut) -> &'a [u8] {
            let (arrived, rest) = self.stream.split_at(cut.len_bytes.min(self.stream.len()));
            self.stream = rest;
            arrived
        }

        fn step_through(&mut self, arrived: &[u8], cut: Cut) -> Result<(), WireFault> {
            let mut input = arrived;
            loop {
                match self.receiver.step(&mut input)? {
                    Step::NeedControl => break,
                    Step::Frame(view) => {
                        let FrameHeader {
                            kind,
                            code,
                            id,
                            payload,
                            ..
                        } = view.header;
                        let (body, id) = (view.body.to_vec(), id.0);
                        self.payload = vec![0; payload.len_bytes as usize];
                        let (payload, is_intact) = (Vec::new(), true);
                        self.received.push(Frame {
                            kind,
                            code,
                            id,
                            body,
                            payload,
                            is_intact,
                        });
                    }
                    Step::Payload {
                        id,
                        offset_bytes,
                        bytes,
                    } => {
                        assert_eq!(id.0, self.received.last().expect("a frame came first").id);
                        let at = offset_bytes as usize;
                        self.payload[at..at + bytes.len()].copy_from_slice(bytes);
                    }
                    Step::NeedPayload {
                        offset_bytes,
                        len_bytes,
                        ..
                    } => {
                        assert!(input.is_empty() && len_bytes > 0);
                        let at = offset_bytes as usize;
                        assert_eq!(at + len_bytes as usize, self.payload.len());
                        if !cut.straight || self.stream.is_empty() {
                            break;
                        }
                        let len_bytes = cut.len_bytes.min(len_bytes as usize);
                        let placed = self.receive(Cut { len_bytes, ..cut });
                        self.payload[at..at + placed.len()].copy_from_slice(placed);
                        self.receiver.on_payload(placed)?;
                    }
                    Step::PayloadDone { id, verdict } => {
                        let frame = self.received.last_mut().expect("a frame came first");
                        assert_eq!(id.0, frame.id);
                        assert!(frame.payload.is_empty(), "a payload is done once");
                        frame.payload = std::mem::take(&mut self.payload);
                        frame.is_intact = verdict == PayloadVerdict::Intact;
                    }
                }
            }
            assert!(input.is_empty(), "every byte is consumed");
            Ok(())
        }
    }

    /// The frame in which a byte of the stream lies, and whether it lies in the payload.
    fn place_of(frames: &[Frame], mut at: usize) -> (usize, bool) {
        for (index, frame) in frames.iter().enumerate() {
            if at < frame.len_bytes() {
                return (index, at >= HEADER_BYTES + frame.body.len());
            }
            at -= frame.len_bytes();
        }
        panic!("beyond the stream");
    }

    const WHOLE: Cut = Cut {
        len_bytes: usize::MAX,
        straight: false,
    };
    const BYTES: Cut = Cut {
        len_bytes: 1,
        straight: false,
    };

    proptest! {
        #[test]
        fn cuts_change_nothing(frames in frames(), cuts in cuts()) {
            let stream = stream_of(&frames);
            for cuts in [&cuts[..], &[WHOLE], &[BYTES]] {
                let (received, ended) = Driver::run(&stream, cuts);
                prop_assert_eq!(&received, &frames);
                prop_assert_eq!(ended, Ok(()));
            }
        }

        #[test]
        fn a_flipped_bit_is_found(frames in frames(), cuts in cuts(), bit in any::<Index>()) {
            let mut stream = stream_of(&frames);
            let bit = bit.index(stream.len() * 8);
            stream[bit / 8] ^= 1 << (bit % 8);
            let (hit, in_payload) = place_of(&frames, bit / 8);
            let (received, ended) = Driver::run(&stream, &cuts);
            if in_payload {
                prop_assert_eq!(ended, Ok(()));
                prop_assert_eq!(received.len(), frames.len());
                for (index, (received, sent)) in received.iter().zip(&frames).enumerate() {
                    prop_assert_eq!(received.is_intact, index != hit);
                    prop_assert_eq!(received == sent, index != hit);
                }
            } else {
                let is_found =
                    matches!(ended, Err(WireFault::Frame(_) | WireFault::BodyCorrupt { .. }));
                prop_assert!(is_found, "{:?}", ended);
                prop_assert_eq!(&received[..], &frames[..hit]);
            }
        }

        #[test]
        fn a_cut_off_end_is_found(frames in frames(), cuts in cuts(), end in any::<Index>()) {
            let stream = stream_of(&frames);
            let end = end.index(stream.len());
            let (hit, _) = place_of(&frames, end);
            let at_boundary = end == stream_of(&frames[..hit]).len();
            let (received, ended) = Driver::run(&stream[..end], &cuts);
            prop_assert_eq!(&received[..hit], &frames[..hit]);
            prop_assert_eq!(ended.is_ok(), at_boundary);
            let is_end = matches!(ended, Ok(()) | Err(WireFault::Truncated { .. }));
            prop_assert!(is_end, "{:?}", ended);
        }

        #[test]
        fn oversized_lengths_are_refused_before_memory_is_taken(
            body_len_bytes in prop_oneof![0..=302_u32, any::<u32>()],
            len_bytes in prop_oneof![0..=502_u32, any::<u32>()],
        ) {
            let payload = PayloadDigest { len_bytes, crc32c: 0 };
            let (kind, code, id) = (FrameKind::Request, 0, RequestId(1));
            let header =
                FrameHeader { kind, code, id, body_len_bytes, body_crc32c: 0, payload };
            let mut receiver = Receiver::new(LIMITS);
            let bytes = header.encode();
            let too_long = body_len_bytes > 300 || len_bytes > 500;
            let step = receiver.step(&mut &bytes[..]).map(|_| ());
            let refused = matches!(
                step,
                Err(WireFault::Frame(
                    FrameFault::BodyTooLong { .. } | FrameFault::PayloadTooLong { .. }
                ))
            );
            prop_assert_eq!(refused, too_long);
            prop_assert_eq!(receiver.control_bytes(), 0);
        }

        #[test]
        fn any_bytes_end_the_same_way_however_cut(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            cuts in cuts(),
        ) {
            let whole = Driver::run(&bytes, &[WHOLE]);
            prop_assert_eq!(Driver::run(&bytes, &cuts), whole);
        }
    }
}
