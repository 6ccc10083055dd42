//! Who may come in by the local channel: who was told so over an authenticated connection.

use std::collections::BTreeMap;
use std::time::Duration;

use lunette_runtime_core::time::Time;

/// Tickets that nobody has used yet.
const TICKETS_MAX: usize = 1024;
/// How long a ticket is good.
const TICKET_LIFE: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Ticket {
    proof: u128,
    good_until: Time,
}

/// Tickets that were given out.
#[derive(Debug, Default)]
pub(super) struct Tickets(BTreeMap<u128, Ticket>);

impl Tickets {
    /// Keeps what the owner is to say to who comes with a ticket. `false` if too many are out.
    pub(super) fn give(&mut self, ticket: u128, proof: u128, now: Time) -> bool {
        self.0.retain(|_, ticket| now < ticket.good_until);
        if self.0.len() >= TICKETS_MAX {
            return false;
        }
        let good_until = now + TICKET_LIFE;
        self.0.insert(ticket, Ticket { proof, good_until });
        true
    }

    /// The proof that belongs to a ticket, which is used up.
    pub(super) fn redeem(&mut self, ticket: u128, now: Time) -> Option<u128> {
        let ticket = self.0.remove(&ticket)?;
        (now < ticket.good_until).then_some(ticket.proof)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_good_once_and_for_a_while_and_so_many_are_out() {
        let (mut tickets, start) = (Tickets::default(), Time::from_ns(0));
        let late = start + TICKET_LIFE;
        assert!(tickets.give(1, 10, start) && tickets.give(2, 20, start));
        assert_eq!(tickets.redeem(1, start), Some(10));
        assert_eq!(tickets.redeem(1, start), None, "used");
        assert_eq!(tickets.redeem(3, start), None, "never given");
        assert_eq!(tickets.redeem(2, late), None, "too late");
        for ticket in 0..TICKETS_MAX as u128 {
            assert!(tickets.give(ticket, 0, start));
        }
        assert!(!tickets.give(u128::MAX, 0, start), "so many are out");
        assert!(tickets.give(u128::MAX, 0, late), "those are over");
    }
}
