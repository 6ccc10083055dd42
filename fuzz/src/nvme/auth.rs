//! DH-HMAC-CHAP: somebody in the middle of a host and a controller, either of which may lack the
//! secret.
//!
//! ```text
//!   byte 0      bit 4; bits 5, 6: the host, the controller lacks the secret; bit 7: the host asks
//!               for the controller's proof
//!   then        for each message an operation and its arguments; missing bytes read as 0
//! ```
//!
//! Without a group: what is computed in one is no matter of messages.

use std::sync::Arc;

use lunette_generate::{Bytes, Source as _};
use lunette_nvmeof_proto::auth::{
    AuthFault, AuthNext, ControllerAuth, Credentials, Entropy, Group, HostAuth, Secret,
};
use lunette_nvmeof_proto::completion::Status;
use lunette_nvmeof_proto::host::RequestData;
use lunette_nvmeof_proto::nqn::Nqn;

use super::Reached;

/// Says in the first byte that this is what the rest is for.
pub(super) const FLAG: u8 = 1 << 4;
const HOST_LACKS: u8 = 1 << 5;
const CONTROLLER_LACKS: u8 = 1 << 6;
const INSISTS: u8 = 1 << 7;
/// A host sends and asks for this many messages at most.
const STEPS_MAX: usize = 8;

/// Those of an end that lacks the secret, if `lacks` is not 0, or knows it.
fn credentials(lacks: u8, has_controllers: bool) -> Arc<Credentials> {
    let first = if lacks == 0 { 10 } else { 20 };
    let secret = |byte| Secret::new(&[byte; 32], None).expect("long enough");
    Arc::new(Credentials {
        groups: vec![Group::Null],
        ..Credentials::new(secret(first), has_controllers.then(|| secret(first + 1)))
    })
}

fn entropy(seed: u64) -> Entropy {
    let mut drawn = seed;
    Entropy::draw(|| {
        drawn = drawn
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        drawn
    })
}

/// Who is in the middle, and what came by.
struct Middle<'a> {
    source: Bytes<'a>,
    heard: Vec<Vec<u8>>,
    has_changed: bool,
}

impl Middle<'_> {
    /// What is passed on instead of a message.
    fn pass(&mut self, mut message: Vec<u8>) -> Vec<u8> {
        let before = message.clone();
        match self.source.u8() % 8 {
            1 => {
                let at = usize::from(self.source.u8()) % message.len();
                message[at] ^= self.source.u8();
            }
            2 => message.truncate(usize::from(self.source.u8())),
            3 => message = (0..self.source.u8()).map(|_| self.source.u8()).collect(),
            4 if !self.heard.is_empty() => {
                let which = usize::from(self.source.u8()) % self.heard.len();
                message.clone_from(&self.heard[which]);
            }
            5 => message.extend((0..self.source.u8()).map(|_| 0xee)),
            _ => {}
        }
        self.has_changed |= message != before;
        self.heard.push(before);
        message
    }
}

/// Authenticates, with what the script makes of the messages.
pub(super) fn attack(data: &[u8], reached: &mut Reached) {
    let (&flags, rest) = data.split_first().expect("the flag has been seen");
    let name = |text| Nqn::new(text).expect("a name");
    let (h, s) = (name("nqn.h"), name("nqn.s"));
    let (host_lacks, controller_lacks) = (flags & HOST_LACKS, flags & CONTROLLER_LACKS);
    let is_shared = (host_lacks == 0) == (controller_lacks == 0);
    let insists = flags & INSISTS != 0;
    let mut host = HostAuth::new(
        credentials(host_lacks, insists),
        h.clone(),
        s.clone(),
        entropy(1),
    );
    let mut controller = ControllerAuth::new(credentials(controller_lacks, true), h, s);
    let mut middle = Middle {
        source: Bytes::new(rest),
        heard: Vec::new(),
        has_changed: false,
    };
    let mut seed = 1;
    let end = (0..STEPS_MAX).find_map(|_| {
        let request = match host.next_request() {
            AuthNext::Send(request) => request,
            end => return Some(end),
        };
        let (status, bytes) = match request.data {
            RequestData::Out(message) => {
                let message = middle.pass(message);
                let comes_twice = middle.source.u8() == 0xff;
                middle.has_changed |= comes_twice;
                for _ in 0..=u8::from(comes_twice) {
                    seed += 1;
                    controller.on_send(&message, &entropy(seed));
                }
                (Status::SUCCESS, Vec::new())
            }
            RequestData::In(len) => told(&mut controller, &mut middle, len),
            RequestData::None => unreachable!("messages are data"),
        };
        host.on_completion(status, &bytes);
        let is_in = controller.is_authenticated();
        assert!(!is_in || is_shared, "who lacks the secret stays outside");
        assert!(
            !is_in || !controller.is_over(),
            "what has failed is not authenticated"
        );
        None
    });
    match end.expect("a host comes to an end") {
        AuthNext::Done => {
            assert!(
                !insists || is_shared,
                "a controller that lacks its secret is found out"
            );
            reached.proved += 1;
        }
        AuthNext::Failed(fault) => {
            assert!(middle.has_changed || !is_shared, "nobody was in the way");
            match fault {
                AuthFault::Rejected(_) => reached.rejected += 1,
                AuthFault::Unproved => reached.unproved += 1,
                AuthFault::Objected(_) => reached.objected += 1,
                AuthFault::Refused(_) => {}
            }
        }
        AuthNext::Send(_) => unreachable!("an end"),
    }
}

/// What the host is told when it asks.
fn told(controller: &mut ControllerAuth, middle: &mut Middle<'_>, len: u32) -> (Status, Vec<u8>) {
    match controller.on_receive(len) {
        Ok(message) => {
            assert_eq!(message.len(), len as usize, "as much as was asked for");
            (Status::SUCCESS, middle.pass(message))
        }
        Err(status) => {
            assert!(!status.is_success());
            (status, Vec::new())
        }
    }
}
