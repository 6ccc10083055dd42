//! Lines and flows.
//!
//! Each host has a line out and a line in, and each rack a line to the other racks and one from them. A line carries
//! one block at a time, the first that came first. A flow has a few blocks under way, the next one when one has
//! arrived, so that a line is busy as long as any flow over it has something to send, and flows share it evenly.

use core::time::Duration;

use lunette_runtime_core::time::Time;

/// Blocks of one flow under way.
const WINDOW: u32 = 4;

/// A line.
#[derive(Clone, Copy, Debug)]
struct Line {
    bytes_per_s: u64,
    free_at: Time,
}

impl Line {
    const fn new(bytes_per_s: u64) -> Self {
        Self {
            bytes_per_s,
            free_at: Time::from_ns(0),
        }
    }

    /// When a block is over the line that comes to it now.
    fn carry(&mut self, now: Time, len_bytes: u64) -> Time {
        let ns = u128::from(len_bytes) * 1_000_000_000 / u128::from(self.bytes_per_s);
        let ns = u64::try_from(ns).expect("a block takes no years");
        self.free_at = self.free_at.max(now) + Duration::from_nanos(ns);
        self.free_at
    }
}

/// Where a flow goes.
#[derive(Clone, Copy, Debug)]
struct Flow {
    from: usize,
    to: usize,
    unsent_bytes: u64,
    unarrived_bytes: u64,
}

/// A block at one of the lines of its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) flow: usize,
    len_bytes: u64,
    hop: u8,
}

/// What comes of a block that is over its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It goes on, or the flow does.
    UnderWay,
    /// It was the flow's last.
    Ended,
}

/// All lines, and the flows over them.
#[derive(Debug)]
pub(super) struct Network {
    out: Vec<Line>,
    into: Vec<Line>,
    rack_out: Vec<Line>,
    rack_into: Vec<Line>,
    racks: Vec<usize>,
    /// By their numbers, which are never used again.
    flows: Vec<Option<Flow>>,
    block_bytes: u64,
    /// Bytes that hosts have sent.
    pub(super) sent: Vec<u64>,
    /// Bytes that went from rack to rack.
    pub(super) crossed_bytes: u64,
}

impl Network {
    /// Hosts with a line of so many bytes per second each way, and the rack of each; so many bytes per second between
    /// racks.
    pub(super) fn new(
        bytes_per_s: &[u64],
        racks: Vec<usize>,
        between_bytes_per_s: u64,
        block_bytes: u64,
    ) -> Self {
        let lines: Vec<_> = bytes_per_s.iter().copied().map(Line::new).collect();
        let count = racks.iter().max().map_or(0, |last| last + 1);
        let between = vec![Line::new(between_bytes_per_s); count];
        Self {
            sent: vec![0; lines.len()],
            out: lines.clone(),
            into: lines,
            rack_out: between.clone(),
            rack_into: between,
            racks,
            flows: Vec::new(),
            block_bytes,
            crossed_bytes: 0,
        }
    }

    /// Begins a flow. Its first blocks are to be carried: [`carry`](Self::carry).
    pub(super) fn begin(&mut self, from: usize, to: usize, len_bytes: u64) -> (usize, Vec<Block>) {
        assert!(from != to && len_bytes > 0, "a flow goes somewhere");
        let id = self.flows.len();
        self.flows.push(Some(Flow {
            from,
            to,
            unsent_bytes: len_bytes,
            unarrived_bytes: len_bytes,
        }));
        let blocks = (0..WINDOW).map_while(|_| self.next_block(id));
        (id, blocks.collect())
    }

    fn next_block(&mut self, id: usize) -> Option<Block> {
        let flow = self.flows[id].as_mut()?;
        let len_bytes = flow.unsent_bytes.min(self.block_bytes);
        flow.unsent_bytes -= len_bytes;
        (len_bytes > 0).then_some(Block {
            flow: id,
            len_bytes,
            hop: 0,
        })
    }

    /// Both ends of a flow.
    pub(super) fn ends(&self, flow: usize) -> (usize, usize) {
        let flow = self.flows[flow].as_ref().expect("it is under way");
        (flow.from, flow.to)
    }

    /// A block comes to the line of its hop: when it is over it.
    pub(super) fn carry(&mut self, now: Time, block: Block) -> Time {
        let (from, to) = self.ends(block.flow);
        let (rack_from, rack_to) = (self.racks[from], self.racks[to]);
        let line = match block.hop {
            0 => {
                self.sent[from] += block.len_bytes;
                &mut self.out[from]
            }
            1 => {
                self.crossed_bytes += block.len_bytes;
                &mut self.rack_out[rack_from]
            }
            2 => &mut self.rack_into[rack_to],
            _ => &mut self.into[to],
        };
        line.carry(now, block.len_bytes)
    }

    /// A block is over a line: what is to be carried next, and whether the flow has ended. Nobody may name a flow that
    /// has.
    pub(super) fn arrived(&mut self, block: Block) -> (Option<Block>, Arrival) {
        let (from, to) = self.ends(block.flow);
        let crosses = self.racks[from] != self.racks[to];
        let hop = match block.hop {
            0 if crosses => 1,
            0 => 3,
            hop => hop + 1,
        };
        if hop <= 3 {
            return (Some(Block { hop, ..block }), Arrival::UnderWay);
        }
        let flow = self.flows[block.flow].as_mut().expect("it is under way");
        flow.unarrived_bytes -= block.len_bytes;
        if flow.unarrived_bytes == 0 {
            return (None, Arrival::Ended);
        }
        (self.next_block(block.flow), Arrival::UnderWay)
    }

    /// A flow is over, or given up: blocks of it that are on their way are carried by nobody any more.
    pub(super) fn end(&mut self, flow: usize) {
        self.flows[flow] = None;
    }

    /// Whether a block is of a flow that was given up.
    pub(super) fn is_over(&self, block: Block) -> bool {
        self.flows[block.flow].is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::super::events::Events;
    use super::*;

    /// When each of the flows has ended, in nanoseconds.
    fn run(network: &mut Network, flows: &[(usize, usize, u64)]) -> Vec<u64> {
        let mut events = Events::new();
        let mut ended = vec![0; flows.len()];
        for &(from, to, len_bytes) in flows {
            let (_, blocks) = network.begin(from, to, len_bytes);
            for block in blocks {
                let at = network.carry(Time::from_ns(0), block);
                events.push(at, block);
            }
        }
        while let Some((now, block)) = events.pop() {
            let (next, arrival) = network.arrived(block);
            if let Some(next) = next {
                let at = network.carry(now, next);
                events.push(at, next);
            }
            if arrival == Arrival::Ended {
                ended[block.flow] = now.as_ns();
            }
        }
        ended
    }

    #[test]
    fn a_flow_takes_as_long_as_its_bytes_and_one_block_more() {
        let mut network = Network::new(&[1_000_000_000; 2], vec![0, 0], 1, 10);
        assert_eq!(run(&mut network, &[(0, 1, 1000)]), [1010]);
        assert_eq!((network.sent[0], network.crossed_bytes), (1000, 0));
    }

    #[test]
    fn flows_share_a_line_evenly_and_leave_none_idle() {
        let mut network = Network::new(&[1_000_000_000; 3], vec![0; 3], 1, 10);
        let ended = run(&mut network, &[(0, 1, 1000), (0, 2, 1000)]);
        assert!(
            ended.iter().all(|&at| (1950..=2010).contains(&at)),
            "{ended:?}"
        );
        let mut network = Network::new(&[1_000_000_000; 3], vec![0; 3], 1, 10);
        let ended = run(&mut network, &[(0, 2, 1000), (1, 2, 1000)]);
        assert!(
            ended.iter().all(|&at| (1950..=2010).contains(&at)),
            "{ended:?}"
        );
    }

    #[test]
    fn between_racks_the_thin_line_decides() {
        let mut network = Network::new(&[1_000_000_000; 3], vec![0, 1, 1], 100_000_000, 10);
        let ended = run(&mut network, &[(0, 1, 1000)]);
        assert!((10_000..10_300).contains(&ended[0]), "{ended:?}");
        assert_eq!(network.crossed_bytes, 1000);
    }
}
