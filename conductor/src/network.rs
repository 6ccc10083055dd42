//! Transfers that share the network fairly.
//!
//! Each node has one line out and one line in, of the same capacity. Rates are max-min fair: the
//! line on which flows get least fixes their rates, and what they leave is shared by the others.

use lunette_conductor_policy::state::PrefillState;

/// A transfer under way.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Flow {
    id: u64,
    from: usize,
    to: usize,
    left_bytes: f64,
    rate: f64,
}

/// All transfers under way.
#[derive(Debug)]
pub(crate) struct Network {
    flows: Vec<Flow>,
    nodes: usize,
    bytes_per_s: f64,
    now_s: f64,
    delivered_bytes: f64,
    sent_bytes: f64,
    lines: Vec<Line>,
}

/// A line while rates are being fixed.
#[derive(Clone, Copy, Debug)]
struct Line {
    left: f64,
    flows: f64,
}

/// Below this, a transfer has arrived: rounding, not bytes.
const DONE_BYTES: f64 = 1.0;

impl Network {
    pub(crate) fn new(nodes: usize, bytes_per_s: f64) -> Self {
        assert!(bytes_per_s > 0.0, "a network moves bytes");
        Self {
            flows: Vec::new(),
            nodes,
            bytes_per_s,
            now_s: 0.0,
            delivered_bytes: 0.0,
            sent_bytes: 0.0,
            lines: Vec::new(),
        }
    }

    /// Begins a transfer. Times never go back.
    pub(crate) fn begin(&mut self, now_s: f64, id: u64, from: usize, to: usize, bytes: f64) {
        assert!(from < self.nodes && to < self.nodes && from != to);
        self.advance(now_s);
        self.sent_bytes += bytes;
        self.flows.push(Flow {
            id,
            from,
            to,
            left_bytes: bytes,
            rate: 0.0,
        });
        self.share();
    }

    /// When the next transfer ends, if none begins before.
    pub(crate) fn next_end_s(&self) -> Option<f64> {
        let ends = self.flows.iter().map(|flow| {
            let left_s = (flow.left_bytes - DONE_BYTES / 2.0).max(0.0) / flow.rate;
            self.now_s + left_s
        });
        ends.min_by(f64::total_cmp)
    }

    /// Takes out what has arrived by now.
    pub(crate) fn arrived(&mut self, now_s: f64, ids: &mut Vec<u64>) {
        self.advance(now_s);
        ids.clear();
        let delivered = &mut self.delivered_bytes;
        self.flows.retain(|flow| {
            let is_done = flow.left_bytes <= DONE_BYTES;
            if is_done {
                ids.push(flow.id);
                *delivered += flow.left_bytes.max(0.0);
            }
            !is_done
        });
        if !ids.is_empty() {
            self.share();
        }
    }

    /// Notes what each prefill instance, which are the first nodes, still had to send when a
    /// transfer last began or ended.
    pub(crate) fn sending(&self, states: &mut [PrefillState]) {
        for state in states.iter_mut() {
            state.sending_bytes = 0.0;
        }
        for flow in &self.flows {
            if let Some(state) = states.get_mut(flow.from) {
                state.sending_bytes += flow.left_bytes;
            }
        }
    }

    /// Bytes begun and bytes delivered so far.
    pub(crate) const fn bytes(&self) -> (f64, f64) {
        (self.sent_bytes, self.delivered_bytes)
    }

    fn advance(&mut self, now_s: f64) {
        assert!(now_s >= self.now_s, "time goes on");
        let passed_s = now_s - self.now_s;
        self.now_s = now_s;
        for flow in &mut self.flows {
            let moved = (flow.rate * passed_s).min(flow.left_bytes);
            flow.left_bytes -= moved;
            self.delivered_bytes += moved;
        }
    }

    fn share(&mut self) {
        let empty = Line {
            left: self.bytes_per_s,
            flows: 0.0,
        };
        self.lines.clear();
        self.lines.resize(2 * self.nodes, empty);
        for flow in &mut self.flows {
            flow.rate = 0.0;
            self.lines[flow.from].flows += 1.0;
            self.lines[self.nodes + flow.to].flows += 1.0;
        }
        let mut unfixed = self.flows.len();
        while unfixed > 0 {
            let busy = self.lines.iter().filter(|line| line.flows > 0.0);
            let rate = busy
                .map(|line| line.left / line.flows)
                .min_by(f64::total_cmp)
                .expect("a flow uses two lines");
            unfixed -= self.fix(rate);
        }
    }

    /// Gives `rate` to the flows of each line on which no flow can get more.
    fn fix(&mut self, rate: f64) -> usize {
        let mut fixed = 0;
        let limit = rate * (1.0 + 1e-9);
        for flow in self.flows.iter_mut().filter(|flow| flow.rate == 0.0) {
            let (out, into) = (flow.from, self.nodes + flow.to);
            let is_tight = |line: Line| line.left <= limit * line.flows;
            if !is_tight(self.lines[out]) && !is_tight(self.lines[into]) {
                continue;
            }
            flow.rate = rate;
            fixed += 1;
            for line in [out, into] {
                self.lines[line].left -= rate;
                self.lines[line].flows -= 1.0;
            }
        }
        assert!(fixed > 0, "the tightest line has a flow");
        fixed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(flows: &[(usize, usize)]) -> Vec<f64> {
        let mut network = Network::new(4, 12.0);
        for (&(from, to), id) in flows.iter().zip(0..) {
            network.begin(0.0, id, from, to, 100.0);
        }
        network.flows.iter().map(|flow| flow.rate).collect()
    }

    #[test]
    fn rates_are_max_min_fair() {
        assert_eq!(rates(&[(0, 1)]), [12.0]);
        assert_eq!(rates(&[(0, 1), (0, 2)]), [6.0, 6.0]);
        assert_eq!(rates(&[(0, 1), (2, 1)]), [6.0, 6.0]);
        // Three share the line out of 0, so the one from 3 gets what they leave on the line into 1.
        let shared = rates(&[(0, 1), (0, 2), (0, 3), (3, 1)]);
        assert_eq!(shared, [4.0, 4.0, 4.0, 8.0]);
    }

    #[test]
    fn a_transfer_speeds_up_when_another_ends() {
        let mut network = Network::new(3, 10.0);
        let mut ids = Vec::new();
        network.begin(0.0, 1, 0, 1, 100.0);
        network.begin(5.0, 2, 0, 2, 25.0);
        let end_s = network.next_end_s().expect("two are under way");
        assert!((end_s - 9.9).abs() < 0.2, "{end_s}");
        let mut states = vec![PrefillState::default(); 2];
        network.sending(&mut states);
        assert_eq!(states[0].sending_bytes, 75.0);
        assert_eq!(states[1].sending_bytes, 0.0);
        network.arrived(10.0, &mut ids);
        assert_eq!(ids, [2]);
        let end_s = network.next_end_s().expect("one is under way");
        assert!((end_s - 12.5).abs() < 0.1, "{end_s}");
        network.arrived(12.5, &mut ids);
        assert_eq!(ids, [1]);
        let (sent, delivered) = network.bytes();
        assert!((sent - delivered).abs() < 1e-6);
    }
}
