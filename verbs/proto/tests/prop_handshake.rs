//! Two handshakes over a channel that delivers, forges or stops, and adapters that connect or not.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use lunette_runtime_core::random::SplitMix64;
    use lunette_runtime_core::time::Time;
    use lunette_verbs_proto::handshake::{Action, Card, Event, Handshake, Message, Peer, Psn};
    use lunette_verbs_proto::negotiate::Capabilities;
    use proptest::prelude::*;

    const DEADLINE: Time = Time::from_ns(1_000_000);

    struct Side {
        handshake: Handshake,
        inbox: VecDeque<Vec<u8>>,
        connects: bool,
        connected: Option<Peer>,
        open: Option<Peer>,
        failed: bool,
    }

    fn card(random: &mut SplitMix64) -> Card {
        Card {
            gid: [9; 16],
            lid: 0,
            qp_num: random.below(1 << 24),
            psn: Psn::draw(random),
            capabilities: Capabilities {
                mtu_bytes: 256 << random.below(5),
                reads_out_max: random.below(256).try_into().unwrap(),
                reads_in_max: random.below(256).try_into().unwrap(),
                has_atomics: random.below(2) == 1,
            },
        }
    }

    impl Side {
        fn new(handshake: Handshake, connects: bool) -> Self {
            Self {
                handshake,
                inbox: VecDeque::new(),
                connects,
                connected: None,
                open: None,
                failed: false,
            }
        }

        /// Takes an event and does what follows; what it sends comes back.
        fn take(&mut self, now: Time, event: Event<'_>) -> Vec<Vec<u8>> {
            let mut sent = Vec::new();
            self.handshake.handle(now, event);
            let mut next = None;
            while let Some(action) = self.handshake.poll_action() {
                match action {
                    Action::Send(message) => {
                        let mut bytes = Vec::new();
                        message.encode(&mut bytes);
                        sent.push(bytes);
                    }
                    Action::Connect(peer) => {
                        assert!(self.connected.is_none(), "a queue pair connects once");
                        self.connected = Some(peer);
                        next = Some(if self.connects {
                            Event::Connected
                        } else {
                            Event::ConnectFailed
                        });
                    }
                    Action::Open(peer) => {
                        assert_eq!(self.connected, Some(peer), "open after connecting");
                        self.open = Some(peer);
                    }
                    Action::Fail(_) => self.failed = true,
                }
            }
            assert!(
                !(self.failed && self.open.is_some()),
                "open or failed, not both"
            );
            if let Some(event) = next {
                sent.extend(self.take(now, event));
            }
            sent
        }
    }

    /// What happens to a message on its way.
    #[derive(Clone, Copy, Debug)]
    enum Way {
        Arrives,
        Vanishes,
        Flips(usize),
        Repeats,
    }

    fn way() -> impl Strategy<Value = Way> {
        prop_oneof![
            12 => Just(Way::Arrives),
            1 => Just(Way::Vanishes),
            1 => any::<usize>().prop_map(Way::Flips),
            1 => Just(Way::Repeats),
        ]
    }

    fn put(inbox: &mut VecDeque<Vec<u8>>, mut bytes: Vec<u8>, way: Way) {
        match way {
            Way::Arrives => inbox.push_back(bytes),
            Way::Vanishes => {}
            Way::Flips(bit) => {
                let bit = bit % (bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
                inbox.push_back(bytes);
            }
            Way::Repeats => inbox.extend([bytes.clone(), bytes]),
        }
    }

    proptest! {
        #[test]
        fn both_open_alike_or_somebody_fails(
            seed: u64,
            connects: (bool, bool),
            ways in prop::collection::vec(way(), 8),
        ) {
            let mut random = SplitMix64::new(seed);
            let (card_i, card_a) = (card(&mut random), card(&mut random));
            let (epoch_i, epoch_a) = (random.next(), random.next());
            let mut sides = [
                Side::new(Handshake::initiator(card_i, epoch_i, DEADLINE), connects.0),
                Side::new(Handshake::acceptor(card_a, epoch_a, DEADLINE), connects.1),
            ];
            let mut ways = ways.into_iter();
            let mut is_honest = true;
            let mut sent = sides[0].take(Time::ZERO, Event::Start);
            let mut sender = 0;
            for _ in 0..8 {
                for bytes in sent.drain(..) {
                    let way = ways.next().unwrap_or(Way::Arrives);
                    is_honest &= matches!(way, Way::Arrives);
                    put(&mut sides[1 - sender].inbox, bytes, way);
                }
                sender = 1 - sender;
                while let Some(bytes) = sides[sender].inbox.pop_front() {
                    sent.extend(sides[sender].take(Time::ZERO, Event::Message(&bytes)));
                }
            }
            for side in &mut sides {
                side.take(DEADLINE, Event::Tick);
                prop_assert!(side.open.is_some() != side.failed, "over, one way");
            }
            if is_honest {
                let fine = connects.0 && connects.1;
                prop_assert_eq!(sides[1].open.is_some(), fine);
                if fine {
                    prop_assert_eq!(sides[0].open.map(|peer| peer.card), Some(card_a));
                    prop_assert_eq!(sides[1].open.map(|peer| peer.card), Some(card_i));
                }
            }
            // The acceptor never opens towards an initiator that has not connected.
            if sides[1].open.is_some() {
                prop_assert!(sides[0].connected.is_some() && connects.0);
            }
        }

        #[test]
        fn any_bytes_are_survived(messages in prop::collection::vec(any::<Vec<u8>>(), 1..4), is_initiator: bool) {
            let card = card(&mut SplitMix64::new(1));
            let handshake = if is_initiator {
                Handshake::initiator(card, 1, DEADLINE)
            } else {
                Handshake::acceptor(card, 1, DEADLINE)
            };
            let mut side = Side::new(handshake, true);
            side.take(Time::ZERO, Event::Start);
            for bytes in messages {
                side.take(Time::ZERO, Event::Message(&bytes));
            }
            prop_assert!(side.open.is_none());
        }
    }

    #[test]
    fn a_message_of_an_earlier_attempt_is_not_taken() {
        let card = card(&mut SplitMix64::new(2));
        let mut side = Side::new(Handshake::initiator(card, 7, DEADLINE), true);
        side.take(Time::ZERO, Event::Start);
        let mut bytes = Vec::new();
        Message::Accept {
            version: 1,
            your_epoch: 6,
            epoch: 1,
            card,
        }
        .encode(&mut bytes);
        side.take(Time::ZERO, Event::Message(&bytes));
        assert!(side.failed && side.connected.is_none());
    }
}
