//! Hosts that connect, ask, and go.

use super::*;
use crate::command::{Sgl, admin, io};
use crate::controller::{AdminReply, IoOrder};
use crate::fabrics::{CONNECT_DATA_BYTES, Property};
use crate::identify::{IdentifyController, PAGE_BYTES, cns, decode_list, identify};
use crate::io::IoRequest;
use crate::log_page::{
    ChannelSecurity, LogRequest, SubsystemKind, decode_ana, decode_discovery_records, id,
};

fn name(of: &str) -> Nqn {
    Nqn::new(&format!("nqn.{of}")).expect("a name")
}

fn target() -> Target {
    let options = TargetOptions {
        serial: "s".into(),
        model: "m".into(),
        firmware: "f".into(),
        entries_max: 64,
        io_queues_max: 2,
        in_capsule_bytes: 8192,
        transfer_pages_log2: 5,
        controllers_max: 2,
        controller_ids: (1, CONTROLLER_ID_MAX),
    };
    let namespace = |nsid, ana_group| Namespace {
        nsid,
        identity: IdentifyNamespace {
            blocks: 1000,
            block_bytes_log2: 9,
            ana_group,
            uuid: [1; 16],
            is_read_only: nsid == 3,
            optimal_blocks_less_one: 7,
        },
    };
    let subsystem = SubsystemOptions {
        name: name("s"),
        namespaces: vec![namespace(1, 1), namespace(3, 2)],
        hosts: Some(vec![name("h")]),
        caches_writes: true,
        secrets: Secrets::default(),
    };
    let record = DiscoveryRecord {
        kind: SubsystemKind::Nvm,
        port_id: 1,
        admin_entries_max: 64,
        subsystem: name("s"),
        address: "127.0.0.1:4420".parse().expect("an address"),
        security: ChannelSecurity::None,
    };
    Target::new(options, vec![subsystem], vec![record])
}

fn data(controller_id: u16, subsystem: Nqn, host: Nqn) -> Vec<u8> {
    ConnectData {
        host_id: [2; 16],
        controller_id,
        subsystem,
        host,
    }
    .encode()
}

fn connect(queue_id: u16, entries: u16, keep_alive_ms: u32) -> Command {
    let mut command = Connect {
        format: 0,
        queue_id,
        entries_less_one: entries - 1,
        without_flow_control: false,
        keep_alive_ms,
    }
    .command();
    command.sgl = Sgl::Transport {
        len_bytes: CONNECT_DATA_BYTES,
    };
    command
}

/// A controller that works.
fn ready(target: &mut Target, subsystem: Nqn) -> ControllerId {
    let bytes = data(CONTROLLER_ANY, subsystem, name("h"));
    let attached = target.connect(&connect(0, 32, 1000), &bytes, 1, Time::ZERO);
    let id = attached.expect("connected").controller;
    let enable = Property::Configuration.write(Configuration::ENABLED.0);
    assert_eq!(ask(target, id, &enable), Ok(0));
    id
}

fn ask(target: &mut Target, id: ControllerId, command: &Command) -> Result<u64, u16> {
    match target.admin(id, 0, 5, command, Time::ZERO) {
        AdminReply::Done { status, result } if status.is_success() => Ok(result),
        AdminReply::Done { status, .. } => Err(status.code()),
        other => panic!("{other:?}"),
    }
}

fn fetch(target: &mut Target, id: ControllerId, mut command: Command, len: u32) -> Vec<u8> {
    command.sgl = Sgl::Transport { len_bytes: len };
    match target.admin(id, 0, 5, &command, Time::ZERO) {
        AdminReply::Data(bytes) => bytes,
        other => panic!("{other:?}"),
    }
}

fn log(id: u8, len_bytes: u64, retains_event: bool) -> Command {
    LogRequest {
        id,
        specific: 0,
        retains_event,
        offset_bytes: 0,
        len_bytes,
    }
    .command()
}

#[test]
fn every_parameter_of_a_connect_is_checked() {
    let mut target = target();
    let good = data(CONTROLLER_ANY, name("s"), name("h"));
    let refused = |target: &mut Target, command: &Command, data: &[u8]| {
        let refusal = target
            .connect(command, data, 1, Time::ZERO)
            .expect_err("refused");
        (refusal.status.code(), refusal.result)
    };
    let parameters = Status::CONNECT_PARAMETERS.code();
    let mut other_format = connect(0, 32, 0);
    other_format.cdw10[0] |= 1;
    let format = Status::CONNECT_FORMAT.code();
    assert_eq!(refused(&mut target, &other_format, &good), (format, 0));
    assert_eq!(
        refused(&mut target, &connect(0, 1, 0), &good),
        (parameters, 44)
    );
    assert_eq!(
        refused(&mut target, &connect(0, 65, 0), &good),
        (parameters, 44)
    );
    assert_eq!(
        refused(&mut target, &connect(0, 32, 0), &good[1..]),
        (parameters, IN_DATA)
    );
    let other = data(CONTROLLER_ANY, name("other"), name("h"));
    assert_eq!(
        refused(&mut target, &connect(0, 32, 0), &other),
        (parameters, IN_DATA | 256)
    );
    let stranger = data(CONTROLLER_ANY, name("s"), name("stranger"));
    let host = Status::CONNECT_HOST.code();
    assert_eq!(
        refused(&mut target, &connect(0, 32, 0), &stranger),
        (host, 0)
    );
    let chosen = data(1, name("s"), name("h"));
    assert_eq!(
        refused(&mut target, &connect(0, 32, 0), &chosen),
        (parameters, IN_DATA | 16)
    );
    let sequence = Status::COMMAND_SEQUENCE_ERROR.code();
    assert_eq!(
        refused(&mut target, &Property::Status.read(), &[]),
        (sequence, 0)
    );
    assert_eq!(target.controllers(), 0);
    for _ in 0..2 {
        assert!(
            target
                .connect(&connect(0, 32, 0), &good, 1, Time::ZERO)
                .is_ok()
        );
    }
    let busy = Status::CONTROLLER_BUSY.code();
    assert_eq!(refused(&mut target, &connect(0, 32, 0), &good), (busy, 0));
}

#[test]
fn queues_for_io_belong_to_their_controller() {
    let mut target = target();
    let bytes = data(CONTROLLER_ANY, name("s"), name("h"));
    let attached = target.connect(&connect(0, 32, 0), &bytes, 1, Time::ZERO);
    let id = attached.expect("connected").controller;
    let bytes = data(id.0, name("s"), name("h"));
    let early = target.connect(&connect(1, 64, 0), &bytes, 1, Time::ZERO);
    assert!(early.is_err(), "not before it is enabled");
    let enable = Property::Configuration.write(Configuration::ENABLED.0);
    assert_eq!(ask(&mut target, id, &enable), Ok(0));
    for (queue_id, fits) in [(1, true), (1, false), (2, true), (3, false)] {
        let attached = target.connect(&connect(queue_id, 64, 0), &bytes, 1, Time::ZERO);
        assert_eq!(attached.is_ok(), fits, "{queue_id}");
    }
    target.detach(id, 2);
    assert!(
        target
            .connect(&connect(2, 64, 0), &bytes, 1, Time::ZERO)
            .is_ok()
    );
    let mut other_host = bytes.clone();
    other_host[0] ^= 1;
    assert!(
        target
            .connect(&connect(2, 64, 0), &other_host, 1, Time::ZERO)
            .is_err()
    );
    let unknown = data(id.0 + 1, name("s"), name("h"));
    assert!(
        target
            .connect(&connect(2, 64, 0), &unknown, 1, Time::ZERO)
            .is_err()
    );
    target.detach(id, 0);
    assert!(!target.has(id));
}

#[test]
fn a_controller_tells_what_it_is() {
    let mut target = target();
    let id = ready(&mut target, name("s"));
    let page_bytes = u32::try_from(PAGE_BYTES).expect("short");
    let page = fetch(&mut target, id, identify(cns::CONTROLLER, 0), page_bytes);
    let identity = IdentifyController::decode(page.first_chunk().expect("a page"));
    let identity = identity.expect("sensible");
    assert_eq!((identity.controller_id, identity.commands_max), (id.0, 64));
    let page = fetch(
        &mut target,
        id,
        identify(cns::ACTIVE_NAMESPACES, 1),
        page_bytes,
    );
    assert_eq!(decode_list(page.first_chunk().expect("a page")), [3]);
    for (cns, nsid, status) in [
        (cns::NAMESPACE, 2, Status::INVALID_NAMESPACE),
        (cns::ACTIVE_NAMESPACES, NSID_ALL, Status::INVALID_NAMESPACE),
        (0x77, 1, Status::INVALID_FIELD),
    ] {
        let mut command = identify(cns, nsid);
        command.sgl = Sgl::Transport {
            len_bytes: page_bytes,
        };
        assert_eq!(ask(&mut target, id, &command), Err(status.code()));
    }
    let short = identify(cns::CONTROLLER, 0);
    let length = Status::DATA_LENGTH_INVALID.code();
    assert_eq!(ask(&mut target, id, &short), Err(length));
    let opcode = Status::INVALID_OPCODE.code();
    assert_eq!(
        ask(&mut target, id, &Command::new(0x80, 0, [0; 6])),
        Err(opcode)
    );
}

#[test]
fn discovery_tells_where_subsystems_are_and_does_nothing_else() {
    let mut target = target();
    let id = ready(&mut target, Nqn::discovery());
    let bytes = fetch(&mut target, id, log(id::DISCOVERY, 2048, false), 2048);
    assert_eq!(decode_discovery_records(&bytes[1024..]).len(), 1);
    let mut health = log(id::HEALTH, 512, false);
    health.sgl = Sgl::Transport { len_bytes: 512 };
    let page = Status::INVALID_LOG_PAGE.code();
    assert_eq!(ask(&mut target, id, &health), Err(page));
    let opcode = Status::INVALID_OPCODE.code();
    assert_eq!(
        ask(&mut target, id, &Command::new(admin::ABORT, 0, [0; 6])),
        Err(opcode)
    );
    let read = Command::new(io::READ, 1, [0; 6]);
    assert!(target.view().io(id, 0, &read).is_err());
}

#[test]
fn events_are_told_once_until_they_are_looked_into() {
    let mut target = target();
    let id = ready(&mut target, name("s"));
    let await_event = Command::new(admin::ASYNC_EVENT, 0, [0; 6]);
    for slot in 0..4 {
        let held = target.admin(id, 0, slot, &await_event, Time::ZERO);
        assert_eq!(held, AdminReply::Held);
    }
    let limit = Status::ASYNC_EVENT_LIMIT.code();
    assert_eq!(ask(&mut target, id, &await_event), Err(limit));
    target.set_ana_state(1, 1, AnaState::NonOptimized);
    assert_eq!(
        target.next_notice(|_| true),
        None,
        "nobody asked to be told"
    );
    let wanted = feature::set(feature::id::EVENTS, events::ANA | events::NAMESPACES);
    assert_eq!(ask(&mut target, id, &wanted), Ok(0));
    target.set_ana_state(1, 1, AnaState::Inaccessible);
    target.set_ana_state(1, 2, AnaState::Change);
    let notice = target.next_notice(|_| true).expect("told");
    assert_eq!((notice.slot, notice.result), (3, 0x0c_0302));
    assert_eq!(target.next_notice(|_| true), None, "told once");
    let bytes = fetch(&mut target, id, log(id::ANA, 128, false), 128);
    let (_, groups) = decode_ana(&bytes).expect("whole");
    let states: Vec<AnaState> = groups.iter().map(|group| group.state).collect();
    assert_eq!(states, [AnaState::Inaccessible, AnaState::Change]);
    target.set_ana_state(1, 1, AnaState::Optimized);
    assert!(target.next_notice(|_| true).is_some(), "told again");
    target.resize(0, 1, 2000);
    let notice = target.next_notice(|_| true).expect("told");
    assert_eq!(notice.result, 0x04_0002);
    let abort = Command::new(admin::ABORT, 0, [0; 6]);
    assert_eq!(
        ask(&mut target, id, &abort),
        Ok(0),
        "the last one that waits"
    );
    let notice = target.next_notice(|_| true).expect("aborted");
    assert_eq!(notice.status, Status::ABORT_REQUESTED);
    assert_eq!(ask(&mut target, id, &abort), Ok(1), "nothing waits");
}

#[test]
fn io_needs_a_namespace_that_can_be_reached_and_written() {
    let mut target = target();
    let id = ready(&mut target, name("s"));
    let geometry = target.view().geometry(0, 1).expect("there");
    let blocks = crate::io::Blocks { first: 0, count: 1 };
    let write = IoRequest::Write {
        blocks,
        must_last: false,
    };
    let ask = |target: &Target, nsid| {
        let io = target.view().io(id, 0, &write.command(nsid, &geometry));
        io.map_err(Status::code)
    };
    let resets = target.view().resets(id).expect("there");
    let order = |namespace, request| IoOrder {
        namespace,
        request,
        resets,
    };
    assert_eq!(ask(&target, 1), Ok(order(Some((1, geometry)), write)));
    assert_eq!(ask(&target, 2), Err(Status::INVALID_NAMESPACE.code()));
    assert_eq!(ask(&target, 3), Err(Status::OPERATION_DENIED.code()));
    for (state, status) in [
        (AnaState::Inaccessible, Status::ANA_INACCESSIBLE),
        (AnaState::PersistentLoss, Status::ANA_PERSISTENT_LOSS),
        (AnaState::Change, Status::ANA_TRANSITION),
    ] {
        target.set_ana_state(1, 1, state);
        assert_eq!(ask(&target, 1), Err(status.code()));
    }
    let flush = IoRequest::Flush.command(NSID_ALL, &geometry);
    assert_eq!(
        target.view().io(id, 0, &flush),
        Ok(order(None, IoRequest::Flush))
    );
    let before = target.view().resets(id).expect("there");
    let disable = Property::Configuration.write(0);
    target.admin(id, 0, 5, &disable, Time::ZERO);
    assert_eq!(target.view().resets(id), Some(before + 1));
    let status = target.view().io(id, 0, &flush).map_err(Status::code);
    assert_eq!(status, Err(Status::COMMAND_SEQUENCE_ERROR.code()));
}

#[test]
fn whoever_is_silent_for_too_long_is_gone() {
    let mut target = target();
    let id = ready(&mut target, name("s"));
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    assert_eq!(target.poll_timeout(), Some(at(1000)));
    let keep_alive = Command::new(admin::KEEP_ALIVE, 0, [0; 6]);
    target.admin(id, 0, 5, &keep_alive, at(900));
    let mut expired = Vec::new();
    target.expire(at(1899), &mut expired);
    assert_eq!(expired, []);
    target.expire(at(1900), &mut expired);
    assert_eq!(expired, [id]);
    assert!(!target.has(id) && target.poll_timeout().is_none());
}

#[test]
fn each_port_has_states_of_its_own() {
    let mut target = target();
    let mut by_port = [1, 2].map(|port_id| {
        let bytes = data(CONTROLLER_ANY, name("s"), name("h"));
        let attached = target.connect(&connect(0, 32, 1000), &bytes, port_id, Time::ZERO);
        let id = attached.expect("connected").controller;
        let enable = Property::Configuration.write(Configuration::ENABLED.0);
        assert_eq!(ask(&mut target, id, &enable), Ok(0));
        let wanted = feature::set(feature::id::EVENTS, events::ANA);
        assert_eq!(ask(&mut target, id, &wanted), Ok(0));
        let await_event = Command::new(admin::ASYNC_EVENT, 0, [0; 6]);
        let held = target.admin(id, 0, 1, &await_event, Time::ZERO);
        assert_eq!(held, AdminReply::Held);
        id
    });
    target.set_ana_state(2, 1, AnaState::Inaccessible);
    let notice = target.next_notice(|_| true).expect("told");
    assert_eq!(notice.controller, by_port[1]);
    assert_eq!(
        target.next_notice(|_| true),
        None,
        "nothing has changed by port 1"
    );
    let geometry = target.view().geometry(0, 1).expect("there");
    let read = IoRequest::Read(crate::io::Blocks { first: 0, count: 1 });
    let read = read.command(1, &geometry);
    let expected = [
        (AnaState::Optimized, 0, None),
        (AnaState::Inaccessible, 1, Some(Status::ANA_INACCESSIBLE)),
    ];
    for (id, (state, changes, refusal)) in by_port.iter_mut().zip(expected) {
        let bytes = fetch(&mut target, *id, log(id::ANA, 128, false), 128);
        let (_, groups) = decode_ana(&bytes).expect("whole");
        assert_eq!((groups[0].state, groups[0].changes), (state, changes));
        assert_eq!(target.view().io(*id, 0, &read).err(), refusal);
    }
}

#[test]
fn ids_of_controllers_stay_in_their_range() {
    let mut target = Target::new(
        TargetOptions {
            controller_ids: (100, 101),
            ..target().options
        },
        Vec::new(),
        Vec::new(),
    );
    let mut ids = Vec::new();
    for _ in 0..3 {
        let bytes = data(CONTROLLER_ANY, Nqn::discovery(), name("h"));
        let attached = target.connect(&connect(0, 32, 0), &bytes, 1, Time::ZERO);
        let id = attached.expect("connected").controller;
        ids.push(id.0);
        target.detach(id, 0);
    }
    assert_eq!(ids, [100, 101, 100]);
}
