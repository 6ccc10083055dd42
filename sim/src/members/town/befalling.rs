//! What befalls the processes of a world.

use std::net::IpAddr;

use lunette_runtime::sim::Kill;
use lunette_runtime_core::time::Time;

use super::super::plan::{CLIENTS, Fault, Planned, SETTLES, Who};
use super::{Town, node_id, start_coordinator};

impl Town {
    /// From wherever one may be to wherever the other may.
    fn ways(&self, from: Who, to: Who) -> Vec<(IpAddr, IpAddr)> {
        let from = self.places(from);
        from.flat_map(|from| self.places(to).map(move |to| (from, to)))
            .collect()
    }

    fn is_alive(&self, index: u8) -> bool {
        self.world.is_alive(self.nodes[usize::from(index)].process)
    }

    /// From now on a node may be outside the map, until it has settled after that.
    fn disturb(&self, index: u8, until: Time) {
        let now = self.world.now();
        let mut ledger = self.ledger.borrow_mut();
        (ledger.copies).on_disturbed(node_id(index), now, until + SETTLES);
    }

    pub(super) fn begin(&mut self, Planned { fault, until, .. }: Planned) {
        match fault {
            Fault::Kill(index, how) => self.kill(index, how),
            Fault::Stop(index) if self.is_alive(index) => {
                self.disturb(index, until);
                self.ledger.borrow_mut().count("stopped");
                self.nodes[usize::from(index)].stops.set(true);
            }
            Fault::Cut {
                from,
                to,
                both_ways,
            } => {
                if let (Who::Node(index), Who::Coordinator) | (Who::Coordinator, Who::Node(index)) =
                    (from, to)
                {
                    self.disturb(index, until);
                }
                self.ledger.borrow_mut().count("cut");
                for (from, to) in self.ways(from, to) {
                    self.world.cut(from, to);
                    if both_ways {
                        self.world.cut(to, from);
                    }
                }
            }
            Fault::Reset(one, other) => {
                for (one, other) in self.ways(one, other) {
                    self.world.reset_connections(one, other);
                }
            }
            Fault::Pause(index) if self.is_alive(index) => {
                self.disturb(index, until);
                self.world.pause(self.nodes[usize::from(index)].process);
            }
            Fault::Slow(index, times) if self.is_alive(index) => {
                self.disturb(index, until);
                self.world
                    .slow_down(self.nodes[usize::from(index)].process, times);
            }
            Fault::ClockJump(index, ahead) if self.is_alive(index) => {
                self.disturb(index, until);
                self.world
                    .jump_clock(self.nodes[usize::from(index)].process, ahead);
            }
            Fault::Stop(_) | Fault::Pause(_) | Fault::Slow(..) | Fault::ClockJump(..) => {}
            Fault::Coordinator => {
                (0..self.plan.nodes).for_each(|index| self.disturb(index, until));
                self.ledger.borrow_mut().count("coordinator away");
                if !self.plan.coordinator_dies {
                    self.world.pause(self.coordinator);
                } else if self.world.is_alive(self.coordinator) {
                    self.world.kill(self.coordinator, Kill::PowerLoss);
                }
            }
            Fault::KillClient(how) => {
                self.ledger.borrow_mut().count("client killed");
                self.world.kill(self.clients[usize::from(CLIENTS) - 1], how);
            }
            Fault::PauseClient(index) => {
                let client = self.clients[usize::from(index)];
                if self.world.is_alive(client) {
                    self.world.pause(client);
                }
            }
            Fault::SlowClient(index, times) => self.slow_client_down(index, times),
        }
    }

    fn kill(&mut self, index: u8, how: Kill) {
        if !self.is_alive(index) {
            return;
        }
        let now = self.world.now();
        let mut ledger = self.ledger.borrow_mut();
        ledger.count("kill");
        ledger.copies.on_kill(now, node_id(index));
        drop(ledger);
        self.world.kill(self.nodes[usize::from(index)].process, how);
    }

    pub(super) fn end(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(index, _) if !self.is_alive(index) => {
                self.start_again(index);
            }
            Fault::Stop(index) => {
                self.kill(index, Kill::Crash);
                self.start_again(index);
            }
            Fault::Cut { from, to, .. } => {
                for (from, to) in self.ways(from, to) {
                    self.world.mend(from, to);
                    self.world.mend(to, from);
                }
            }
            Fault::Pause(index) if self.is_alive(index) => {
                self.world.resume(self.nodes[usize::from(index)].process);
            }
            Fault::Slow(index, _) if self.is_alive(index) => {
                self.world
                    .slow_down(self.nodes[usize::from(index)].process, 1);
            }
            Fault::Coordinator if !self.world.is_alive(self.coordinator) => {
                self.coordinator = start_coordinator(&mut self.world, true);
            }
            Fault::Coordinator if !self.plan.coordinator_dies => {
                self.world.resume(self.coordinator);
            }
            Fault::KillClient(_) => {
                let index = CLIENTS - 1;
                self.clients[usize::from(index)] = self.start_client(index);
            }
            Fault::PauseClient(index) => {
                let client = self.clients[usize::from(index)];
                if self.world.is_alive(client) {
                    self.world.resume(client);
                }
            }
            Fault::SlowClient(index, _) => self.slow_client_down(index, 1),
            _ => {}
        }
    }

    fn slow_client_down(&mut self, index: u8, times: u32) {
        let client = self.clients[usize::from(index)];
        if self.world.is_alive(client) {
            self.world.slow_down(client, times);
        }
    }
}
