//! The table of calls against a model that knows three facts of each call: whether it is over,
//! how long its response is, and whether a fence is pending.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use lunette_runtime_core::ids::RequestId;
    use lunette_runtime_core::time::Time;
    use lunette_transfer_proto::calls::{
        Abandon, CallEnd, CallFault, Calls, EndCause, Expired, Fenced, InFlightFull, ResponseSink,
    };
    use lunette_transfer_proto::receiver::PayloadVerdict;
    use proptest::prelude::*;
    use proptest::sample::Index;

    const IN_FLIGHT_MAX: u32 = 6;

    #[derive(Clone, Debug)]
    enum Op {
        Start { ttl_ns: Option<u8>, room_bytes: u8 },
        Respond { call: Index, payload_len_bytes: u8 },
        End { call: Index, is_intact: bool },
        Expire { after_ns: u8 },
        Abandon { call: Index },
        Fenced { call: Index },
        Goaway { read: Index },
        FailAll,
    }

    fn op() -> impl Strategy<Value = Op> {
        let call = || any::<Index>();
        prop_oneof![
            6 => (any::<Option<u8>>(), any::<u8>())
                .prop_map(|(ttl_ns, room_bytes)| Op::Start { ttl_ns, room_bytes }),
            6 => (call(), any::<u8>())
                .prop_map(|(call, payload_len_bytes)| Op::Respond { call, payload_len_bytes }),
            5 => (call(), any::<bool>()).prop_map(|(call, is_intact)| Op::End { call, is_intact }),
            4 => (0..80_u8).prop_map(|after_ns| Op::Expire { after_ns }),
            3 => call().prop_map(|call| Op::Abandon { call }),
            3 => call().prop_map(|call| Op::Fenced { call }),
            1 => any::<Index>().prop_map(|read| Op::Goaway { read }),
            1 => Just(Op::FailAll),
        ]
    }

    #[derive(Debug)]
    struct Call {
        token: u32,
        deadline: Time,
        /// How many were started before it.
        ordinal: u64,
        room_bytes: u32,
        response_bytes: Option<u32>,
        fence: Option<EndCause>,
        is_over: bool,
    }

    impl Call {
        fn fits(&self) -> bool {
            self.response_bytes
                .is_none_or(|bytes| bytes <= self.room_bytes)
        }

        fn give_up(&mut self, cause: EndCause) -> Abandon<u32> {
            if self.is_over || self.fence.is_some() {
                Abandon::Over
            } else if self.response_bytes.is_some() && self.fits() {
                self.fence = Some(cause);
                Abandon::MustFence
            } else {
                self.is_over = true;
                Abandon::Ended { token: self.token }
            }
        }

        fn may_expire(&self) -> bool {
            !self.is_over && self.fence.is_none() && self.deadline < Time::MAX
        }
    }

    /// The calls that the peer has not answered in full, by id; and every id ever issued.
    #[derive(Debug, Default)]
    struct Model {
        calls: BTreeMap<RequestId, Call>,
        issued: BTreeSet<RequestId>,
        tokens: u32,
        started: u64,
        now: Time,
    }

    impl Model {
        /// One of the ids ever issued, or one that never was.
        fn pick(&self, index: &Index) -> RequestId {
            let at = index.index(self.issued.len() + 1);
            self.issued
                .iter()
                .nth(at)
                .copied()
                .unwrap_or(RequestId(77 << 32 | 1))
        }

        /// Mostly one of those in flight: they are what it is about.
        fn pick_live(&self, index: &Index) -> RequestId {
            let at = index.index(self.calls.len() + 1);
            self.calls
                .keys()
                .nth(at)
                .copied()
                .unwrap_or_else(|| self.pick(index))
        }

        fn start(&mut self, calls: &mut Calls<u32>, ttl_ns: Option<u8>, room_bytes: u8) {
            let deadline = ttl_ns.map_or(Time::MAX, |ns| {
                Time::from_ns(self.now.as_ns() + u64::from(ns))
            });
            let (token, room_bytes) = (self.tokens, u32::from(room_bytes));
            self.tokens += 1;
            let started = calls.start(deadline, room_bytes, token);
            if self.calls.len() == IN_FLIGHT_MAX as usize {
                assert_eq!(started, Err(InFlightFull { token }));
                return;
            }
            let id = started.expect("below the limit");
            assert!(self.issued.insert(id), "an id is issued once");
            let (response_bytes, fence, is_over) = (None, None, false);
            let call = Call {
                token,
                deadline,
                ordinal: self.started,
                room_bytes,
                response_bytes,
                fence,
                is_over,
            };
            self.started += 1;
            self.calls.insert(id, call);
        }

        fn respond(&mut self, id: RequestId, len_bytes: u32) -> Result<ResponseSink, CallFault> {
            let fault = if self.issued.contains(&id) {
                CallFault::AlreadyAnswered { id }
            } else {
                CallFault::NeverIssued { id }
            };
            let call = self.calls.get_mut(&id).ok_or(fault)?;
            if call.response_bytes.is_some() {
                return Err(fault);
            }
            call.response_bytes = Some(len_bytes);
            let places = !call.is_over && call.fits();
            Ok(if places {
                ResponseSink::Place
            } else {
                ResponseSink::Discard
            })
        }

        /// `None` where the driver may not end the response: it has not begun.
        fn end(&mut self, id: RequestId, verdict: PayloadVerdict) -> Option<CallEnd<u32>> {
            let payload_len_bytes = self.calls.get(&id)?.response_bytes?;
            let call = self.calls.remove(&id).expect("seen above");
            let (token, room_bytes) = (call.token, call.room_bytes);
            Some(match verdict {
                _ if call.is_over => CallEnd::Discarded,
                _ if !call.fits() => CallEnd::TooLong {
                    token,
                    payload_len_bytes,
                    room_bytes,
                },
                PayloadVerdict::Intact => CallEnd::Done { token },
                PayloadVerdict::Corrupt { expected, computed } => CallEnd::Corrupt {
                    token,
                    expected,
                    computed,
                },
            })
        }

        fn expire(&mut self) -> BTreeSet<(RequestId, Option<u32>)> {
            let now = self.now;
            let due = self
                .calls
                .iter_mut()
                .filter(|(_, c)| c.may_expire() && c.deadline <= now);
            due.map(
                |(id, call)| match call.give_up(EndCause::DeadlineExceeded) {
                    Abandon::Ended { token } => (*id, Some(token)),
                    Abandon::MustFence => (*id, None),
                    Abandon::Over => panic!("a call that may expire is not over"),
                },
            )
            .collect()
        }

        fn fenced(&mut self, id: RequestId) -> Option<Fenced<u32>> {
            let call = self.calls.get_mut(&id)?;
            let cause = call.fence.filter(|_| !call.is_over)?;
            call.is_over = true;
            Some(Fenced {
                token: call.token,
                cause,
            })
        }

        /// Whoever was read is answered, or has an answer that has begun.
        fn goaway(&mut self, read: u64) -> Vec<(RequestId, u32)> {
            let is_unread = |call: &Call| call.ordinal >= read && call.response_bytes.is_none();
            let gone = self.calls.extract_if(.., |_, call| is_unread(call));
            let open = gone.filter(|(_, call)| !call.is_over);
            open.map(|(id, call)| (id, call.token)).collect()
        }

        fn apply(&mut self, calls: &mut Calls<u32>, op: Op) {
            match op {
                Op::Start { ttl_ns, room_bytes } => self.start(calls, ttl_ns, room_bytes),
                Op::Respond {
                    call,
                    payload_len_bytes,
                } => {
                    let (id, len_bytes) = (self.pick_live(&call), u32::from(payload_len_bytes));
                    assert_eq!(
                        calls.on_response(id, len_bytes),
                        self.respond(id, len_bytes)
                    );
                }
                Op::End { call, is_intact } => {
                    let corrupt = PayloadVerdict::Corrupt {
                        expected: 1,
                        computed: 2,
                    };
                    let verdict = if is_intact {
                        PayloadVerdict::Intact
                    } else {
                        corrupt
                    };
                    let id = self.pick_live(&call);
                    if let Some(end) = self.end(id, verdict) {
                        assert_eq!(calls.on_response_end(id, verdict), end);
                    }
                }
                Op::Expire { after_ns } => {
                    self.now = Time::from_ns(self.now.as_ns() + u64::from(after_ns));
                    let mut expired = Vec::new();
                    calls.expire(self.now, &mut expired);
                    let found = expired.into_iter().map(|expired| match expired {
                        Expired::Ended { id, token } => (id, Some(token)),
                        Expired::MustFence { id } => (id, None),
                    });
                    assert_eq!(found.collect::<BTreeSet<_>>(), self.expire());
                }
                Op::Abandon { call } => {
                    let id = self.pick_live(&call);
                    let call = self.calls.get_mut(&id);
                    let outcome = call.map_or(Abandon::Over, |c| c.give_up(EndCause::Abandoned));
                    assert_eq!(calls.abandon(id), outcome);
                }
                Op::Fenced { call } => {
                    let id = self.pick_live(&call);
                    assert_eq!(calls.on_fenced(id), self.fenced(id));
                }
                Op::Goaway { read } => {
                    let started = usize::try_from(self.started).expect("few were started");
                    let read = read.index(started + 1) as u64;
                    let mut unread = calls.on_goaway(read);
                    unread.sort_unstable();
                    assert_eq!(unread, self.goaway(read));
                }
                Op::FailAll => {
                    let failed: BTreeSet<_> = calls.fail_all().into_iter().collect();
                    let all = std::mem::take(&mut self.calls).into_iter();
                    let open = all.filter(|(_, call)| !call.is_over);
                    assert_eq!(failed, open.map(|(id, call)| (id, call.token)).collect());
                }
            }
        }

        fn check(&self, calls: &Calls<u32>) {
            assert_eq!(calls.in_flight(), self.calls.len());
            assert_eq!(calls.is_full(), self.calls.len() == IN_FLIGHT_MAX as usize);
            let open = self.calls.values().filter(|call| call.may_expire());
            assert_eq!(calls.next_deadline(), open.map(|call| call.deadline).min());
            for id in &self.issued {
                let open = self.calls.get(id).filter(|call| !call.is_over);
                assert_eq!(calls.token(*id), open.map(|call| &call.token));
            }
        }
    }

    proptest! {
        #[test]
        fn calls_behave_as_their_model(ops in prop::collection::vec(op(), 0..200)) {
            let mut calls = Calls::new(IN_FLIGHT_MAX);
            let mut model = Model::default();
            for op in ops {
                model.apply(&mut calls, op);
                model.check(&calls);
            }
        }
    }
}
