//! Several connections of several hosts to one target at once, with a disk as the oracle, and a stranger among them
//! who keeps to nothing.
//!
//! ```text
//!   byte 0      bit 4 is not set, bit 5 is; bits 1, 2: digests; bit 3: the hosts want to know the heads of their queues
//!   byte 1      number of operations; then four bytes for each
//!   then        the stranger's script, as in `script`
//! ```
//!
//! The disk holds what the controller's end was told to write; the model what the hosts wanted to be written, in the
//! order in which the commands were carried out.

mod link;
mod served;

use lunette_generate::{Bytes, Source};
use lunette_nvmeof_proto::completion::Status;
use lunette_nvmeof_proto::controller::{
    Namespace, Secrets, SubsystemOptions, Target, TargetOptions,
};
use lunette_nvmeof_proto::identify::IdentifyNamespace;
use lunette_nvmeof_proto::io::{Blocks, Geometry, IoRequest};
use lunette_nvmeof_proto::nqn::Nqn;
use lunette_nvmeof_proto::pdu::Digests;

use self::link::Link;
use self::served::Served;
use super::Reached;
use super::script::{HONEST, SUBSYSTEM, Script};

/// Tells such inputs from the others.
pub(super) const FLAG: u8 = 1 << 5;
const ENTRIES: u16 = 4;
const BLOCK_BYTES: usize = 512;
const GEOMETRY: Geometry = Geometry {
    blocks: 32,
    block_bytes_log2: 9,
    transfer_bytes_max: 1 << 14,
};
const HOSTS: [&str; 2] = ["nqn.a", "nqn.b"];

struct World {
    target: Target,
    /// Admin queues of the two hosts, two queues of the first host and one of the second.
    links: Vec<Link>,
    disk: Vec<u8>,
    model: Vec<u8>,
    stranger: Served,
    reached: Reached,
}

/// Plays the operations, and then lets everything come to its end.
pub(super) fn attack(data: &[u8], reached: &mut Reached) {
    let mut source = Bytes::new(data);
    let flags = source.u8();
    let digests = Digests {
        header: flags & 2 != 0,
        data: flags & 4 != 0,
    };
    let mut world = World::new(digests, flags & 8 != 0);
    let count = usize::from(source.u8());
    let ops: Vec<[u8; 4]> = (0..count).map(|_| [(); 4].map(|()| source.u8())).collect();
    let mut script = data.get(2 + count * 4..).unwrap_or_default().to_vec();
    if let Some(first) = script.first_mut() {
        *first |= 1;
    }
    let script = Script::read(&script);
    let mut said = script.stream.as_slice();
    for [what, which, first, second] in ops {
        let of = usize::from(which) % world.links.len();
        match what % 8 {
            0..=2 => world.submit(of, what, first, second),
            3 => {
                let count = usize::from(first) * 8;
                world.links[of].move_to_controller(count, &mut world.target);
            }
            4 => world.links[of].move_to_host(usize::from(first) * 8),
            5 | 6 => world.execute(of, first),
            _ => world.hear_stranger(&mut said, usize::from(first)),
        }
    }
    world.hear_stranger(&mut said, usize::MAX);
    world.settle();
    *reached = world.reached;
}

fn subsystem(name: &str, hosts: Option<Vec<Nqn>>) -> SubsystemOptions {
    let identity = IdentifyNamespace {
        blocks: GEOMETRY.blocks,
        block_bytes_log2: GEOMETRY.block_bytes_log2,
        ana_group: 1,
        uuid: [1; 16],
        is_read_only: false,
        optimal_blocks_less_one: 7,
    };
    SubsystemOptions {
        name: Nqn::new(name).expect("a name"),
        namespaces: vec![Namespace { nsid: 1, identity }],
        hosts,
        caches_writes: true,
        secrets: Secrets::default(),
    }
}

impl World {
    fn new(digests: Digests, has_flow_control: bool) -> Self {
        let options = TargetOptions {
            serial: "s".into(),
            model: "m".into(),
            firmware: "f".into(),
            entries_max: 8,
            io_queues_max: 2,
            in_capsule_bytes: 2048,
            transfer_pages_log2: 2,
            controllers_max: 8,
            controller_ids: (1, 8),
        };
        let hosts = HOSTS.map(|name| Nqn::new(name).expect("a name")).to_vec();
        let subsystems = vec![subsystem(HONEST, Some(hosts)), subsystem(SUBSYSTEM, None)];
        let mut target = Target::new(options, subsystems, Vec::new());
        let mut links = Vec::new();
        for (host, queues) in HOSTS.into_iter().zip([2, 1]) {
            let connect = |queue, target: &mut Target| {
                Link::connect(host, queue, digests, has_flow_control, target)
            };
            let mut admin = connect((0, 0xffff), &mut target);
            let id = admin.enable(&mut target);
            links.extend((1..=queues).map(|queue_id| connect((queue_id, id), &mut target)));
        }
        Self {
            target,
            links,
            disk: vec![0; 32 * BLOCK_BYTES],
            model: vec![0; 32 * BLOCK_BYTES],
            stranger: Served::new(),
            reached: Reached::default(),
        }
    }

    fn submit(&mut self, of: usize, what: u8, first: u8, second: u8) {
        // Some are beyond the end.
        let blocks = Blocks {
            first: u64::from(first % 36),
            count: 1 + u32::from(second % 12),
        };
        let request = match what / 8 % 5 {
            0 | 1 => IoRequest::Write {
                blocks,
                must_last: what > 128,
            },
            2 => IoRequest::Read(blocks),
            3 => IoRequest::Compare(blocks),
            _ => IoRequest::WriteZeroes {
                blocks,
                may_deallocate: false,
            },
        };
        // Few values, so that some comparisons hold.
        self.links[of].submit(request, second / 64, what & 1 != 0);
    }

    /// The controller carries out one of the commands of a connection that it has whole.
    fn execute(&mut self, of: usize, nth: u8) {
        let link = &mut self.links[of];
        let count = link.served.ready.len();
        if count == 0 {
            return;
        }
        let mut slots = link.served.ready.keys().copied();
        let slot = slots.nth(usize::from(nth) % count).expect("in range");
        let (command, data) = link.served.ready.remove(&slot).expect("just seen");
        let cid = link.served.queue.cid_of(slot);
        let asked = &link.asked[&cid];
        let expected = carry_out(&mut self.model, asked.request, &asked.data);
        let attached = link.served.attached.expect("connected");
        let view = self.target.view();
        let found = view.io(attached.controller, attached.queue_id, &command);
        let done = match found {
            Err(status) => (status, Vec::new()),
            Ok(order) => carry_out(&mut self.disk, order.request, &data),
        };
        assert_eq!(done.0.code(), expected.0.code(), "{:?}", asked.request);
        assert!(done.1 == expected.1, "the disk holds what was written");
        self.reached.several_refused += u32::from(!done.0.is_success());
        if done.1.is_empty() {
            link.served.complete(slot, done.0, 0);
        } else {
            link.served.send(slot, &done.1);
        }
        let before = link.outcomes.insert(cid, expected);
        assert!(before.is_none(), "each is carried out once");
    }

    fn hear_stranger(&mut self, said: &mut &[u8], count: usize) {
        let (bytes, rest) = said.split_at(count.min(said.len()));
        *said = rest;
        self.stranger.receive(bytes, &mut self.target);
        if let Some(attached) = self.stranger.attached {
            assert_ne!(attached.subsystem, Some(0), "it is for its hosts alone");
            self.reached.stranger_connected = 1;
        }
        // What it has asked of its own disk is of no interest.
        while let Some((slot, _)) = self.stranger.ready.pop_first() {
            self.stranger.complete(slot, Status::INTERNAL_ERROR, 0);
        }
        self.stranger.out.clear();
        assert!(
            self.stranger.queue.in_flight() <= 32,
            "commands are bounded"
        );
        self.reached.stranger_faults = u32::from(self.stranger.fault.is_some());
        while let Some(notice) = self.target.next_notice(|_| true) {
            let attached = self.stranger.attached.expect("the hosts hold nothing");
            assert_eq!(notice.controller, attached.controller, "its own commands");
            let (slot, status) = (notice.slot, notice.status);
            self.stranger.complete(slot, status, notice.result);
        }
    }

    fn settle(&mut self) {
        for of in 0..self.links.len() {
            while !self.links[of].asked.is_empty() {
                let before = self.links[of].completed;
                self.links[of].settle(&mut self.target);
                self.execute(of, 0);
                self.links[of].settle(&mut self.target);
                let has_moved = self.links[of].completed > before;
                assert!(has_moved, "commands that do not end");
            }
            let link = &self.links[of];
            assert!(link.outcomes.is_empty() && link.served.queue.in_flight() == 0);
            self.reached.several_done += link.completed;
            self.reached.several_read += link.read_back;
        }
        assert!(
            self.disk == self.model,
            "the disk is as the hosts wanted it"
        );
    }
}

/// Does what is asked with a disk; gives the status and what is read.
fn carry_out(disk: &mut [u8], request: IoRequest, data: &[u8]) -> (Status, Vec<u8>) {
    let Some(blocks) = request.blocks() else {
        return (Status::SUCCESS, Vec::new());
    };
    let start = usize::try_from(blocks.first).expect("small") * BLOCK_BYTES;
    let len = blocks.count as usize * BLOCK_BYTES;
    let Some(range) = disk.get_mut(start..start + len) else {
        return (Status::LBA_OUT_OF_RANGE, Vec::new());
    };
    match request {
        IoRequest::Read(_) => return (Status::SUCCESS, range.to_vec()),
        IoRequest::Write { .. } => range.copy_from_slice(data),
        IoRequest::WriteZeroes { .. } => range.fill(0),
        IoRequest::Compare(_) if *range != *data => return (Status::COMPARE_FAILURE, Vec::new()),
        IoRequest::Compare(_) | IoRequest::Flush | IoRequest::Manage { .. } => {}
    }
    (Status::SUCCESS, Vec::new())
}
