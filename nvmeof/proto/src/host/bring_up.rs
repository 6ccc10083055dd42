//! From an open connection to a controller that works (NVMe Base 2.0, "Controller Initialization").
//!
//! ```text
//!   Connecting --(asked to)--> Authenticating --+
//!        |                                      v
//!        +----------------------------> Capabilities -> Configuration --(enabled)--> Disabling
//!                                                             |                        v
//!                                                          Enabling <-------- AwaitingDisabled
//!                                                             v
//!   Ready <- Events <- Queues <- Identifying <- AwaitingReady (polled)
//!     ^                                |
//!     +---------(discovery)------------+        any failure: Failed
//! ```

use core::time::Duration;
use std::sync::Arc;

use lunette_runtime_core::time::Time;
use thiserror::Error;

use super::association::{Association, authentication, check, connect_request, is_auth_required};
use crate::auth::{AuthFault, AuthNext, Credentials, Entropy, HostAuth};
use crate::command::{Command, Sgl};
use crate::completion::Status;
use crate::fabrics::{
    CONTROLLER_ANY, Capabilities, Configuration, Connect, ConnectData, ControllerStatus, Property,
    low,
};
use crate::feature;
use crate::identify::{IdentifyController, PAGE_BYTES, cns, identify};
use crate::nqn::Nqn;

/// How often a controller is asked whether it is ready.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Entries of an admin queue.
const ADMIN_ENTRIES: u16 = 32;

/// What a host wants of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BringUpOptions {
    /// The subsystem's name.
    pub subsystem: Nqn,
    /// The host's name.
    pub host: Nqn,
    /// Which host this is, beside its name.
    pub host_id: [u8; 16],
    /// How long the host may be silent, in milliseconds; 0 for ever.
    pub keep_alive_ms: u32,
    /// Queues for I/O that are asked for, at least 1; a discovery controller has none.
    pub io_queues: u16,
    /// Entries of each of them.
    pub entries: u16,
    /// Events that the host wants to be told of.
    pub events: u32,
}

/// Data that go with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestData {
    /// None.
    None,
    /// To the controller, in the capsule.
    Out(Vec<u8>),
    /// From the controller: this many bytes.
    In(u32),
}

/// A command to be sent on the admin queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The command, with its descriptor.
    pub command: Command,
    /// Its data.
    pub data: RequestData,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Send this, and hand its completion to [`BringUp::on_completion`].
    Send(Request),
    /// Nothing until then.
    WaitUntil(Time),
    /// The controller works.
    Ready(Box<Association>),
    /// It does not.
    Failed(BringUpFault),
}

/// Why a controller could not be brought up.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BringUpFault {
    /// A command failed.
    #[error("{step}: {status}")]
    Refused {
        /// What was being done.
        step: &'static str,
        /// How it ended.
        status: Status,
    },
    /// It wants the host to authenticate, which has no secret for that.
    #[error("the controller requires authentication, and no secret was given")]
    AuthRequired,
    /// It wants the connection to be encrypted with what comes of authentication.
    #[error("the controller requires a secure channel")]
    SecureChannelRequired,
    /// One of the two ends did not prove what it had to.
    #[error(transparent)]
    Authentication(#[from] AuthFault),
    /// It was not ready, or not disabled, in its own time.
    #[error("the controller was not {awaited} in its own time")]
    TimedOut {
        /// What it was to be.
        awaited: &'static str,
    },
    /// It says that it has failed.
    #[error("the controller reports a fatal status")]
    Fatal,
    /// What it says of itself makes no sense.
    #[error("the controller's identity makes no sense")]
    Nonsense,
}

impl BringUpFault {
    /// Whether trying again later may help.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Refused { status, .. } => status.is_retryable(),
            Self::TimedOut { .. } | Self::Fatal => true,
            Self::Authentication(fault) => fault.is_retryable(),
            Self::AuthRequired | Self::SecureChannelRequired | Self::Nonsense => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    Authenticating,
    Capabilities,
    Configuration,
    Disabling,
    AwaitingDisabled,
    Enabling,
    AwaitingReady,
    Identifying,
    Queues,
    Events,
    Ready,
    Failed(BringUpFault),
}

impl State {
    const fn step(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Authenticating => "authenticating",
            Self::Capabilities => "reading capabilities",
            Self::Configuration => "reading the configuration",
            Self::Disabling | Self::AwaitingDisabled => "disabling",
            Self::Enabling | Self::AwaitingReady => "enabling",
            Self::Identifying => "identifying",
            Self::Queues => "asking for queues",
            Self::Events => "asking for events",
            Self::Ready | Self::Failed(_) => "nothing",
        }
    }
}

/// Brings one controller up.
#[derive(Debug)]
pub struct BringUp {
    options: BringUpOptions,
    state: State,
    is_waiting: bool,
    /// When a state that is polled is asked for next, and when it is given up.
    polls_at: Time,
    deadline: Time,
    capabilities: Capabilities,
    controller_id: u16,
    identity: Option<IdentifyController>,
    io_queues: u16,
    credentials: Option<(Arc<Credentials>, Entropy)>,
    auth: Option<Box<HostAuth>>,
}

impl BringUp {
    /// For an admin queue whose connection is open.
    #[must_use]
    pub fn new(options: BringUpOptions) -> Self {
        Self {
            options,
            state: State::Connecting,
            is_waiting: false,
            polls_at: Time::ZERO,
            deadline: Time::MAX,
            capabilities: Capabilities(0),
            controller_id: CONTROLLER_ANY,
            identity: None,
            io_queues: 0,
            credentials: None,
            auth: None,
        }
    }

    /// The same for a host that can authenticate, on this queue with `entropy`.
    #[must_use]
    pub fn with_credentials(self, credentials: Arc<Credentials>, entropy: Entropy) -> Self {
        Self {
            credentials: Some((credentials, entropy)),
            ..self
        }
    }

    /// Why it will fail, if that is known before the controller has been told.
    #[must_use]
    pub fn fault(&self) -> Option<BringUpFault> {
        let auth = self.auth.as_ref()?;
        auth.fault().map(BringUpFault::Authentication)
    }

    /// Whether the next completion may take milliseconds to look into.
    #[must_use]
    pub fn is_costly(&self) -> bool {
        self.auth.as_ref().is_some_and(|auth| auth.is_costly())
    }

    /// What to do next. One command is in flight at a time.
    ///
    /// # Panics
    /// If a command is in flight.
    pub fn next(&mut self, now: Time) -> Next {
        assert!(!self.is_waiting, "one command at a time");
        if let Some(auth) = &mut self.auth {
            match auth.next_request() {
                AuthNext::Send(request) => return self.send(request),
                AuthNext::Done => self.state = State::Capabilities,
                AuthNext::Failed(fault) => self.state = State::Failed(fault.into()),
            }
            self.auth = None;
        }
        let command = match self.state {
            State::Connecting => return self.send(self.connect()),
            State::Authenticating => unreachable!("just seen to"),
            State::Capabilities => Property::Capabilities.read(),
            State::Configuration => Property::Configuration.read(),
            State::Disabling => Property::Configuration.write(0),
            State::Enabling => Property::Configuration.write(Configuration::ENABLED.0),
            State::AwaitingDisabled | State::AwaitingReady => {
                if now < self.polls_at {
                    return Next::WaitUntil(self.polls_at);
                }
                Property::Status.read()
            }
            State::Identifying => {
                let mut command = identify(cns::CONTROLLER, 0);
                let len_bytes = u32::try_from(PAGE_BYTES).expect("a page is short");
                command.sgl = Sgl::Transport { len_bytes };
                return self.send(Request {
                    command,
                    data: RequestData::In(len_bytes),
                });
            }
            State::Queues => feature::set(
                feature::id::QUEUES,
                feature::queues_value(self.options.io_queues.max(1)),
            ),
            State::Events => feature::set(feature::id::EVENTS, self.events()),
            State::Ready => return Next::Ready(Box::new(self.association())),
            State::Failed(fault) => return Next::Failed(fault),
        };
        self.send(Request {
            command,
            data: RequestData::None,
        })
    }

    /// The command in flight has ended.
    pub fn on_completion(&mut self, now: Time, status: Status, result: u64, data: &[u8]) {
        assert!(self.is_waiting, "a command was in flight");
        self.is_waiting = false;
        if let Some(auth) = &mut self.auth {
            auth.on_completion(status, data);
            return;
        }
        // Events are a convenience: a controller without them does as well.
        let is_needed = self.state != State::Events;
        let next = match check(status, self.state.step()) {
            Err(fault) if is_needed => Err(fault),
            _ => self.after(now, result, data),
        };
        self.state = next.unwrap_or_else(State::Failed);
    }

    fn after(&mut self, now: Time, result: u64, data: &[u8]) -> Result<State, BringUpFault> {
        let dword = u32::try_from(result & 0xffff_ffff).expect("32 bits");
        match self.state {
            State::Connecting => {
                self.controller_id = low(dword);
                self.after_connect(result)
            }
            State::Authenticating => Ok(State::Capabilities),
            State::Capabilities => {
                self.capabilities = Capabilities(result);
                Ok(State::Configuration)
            }
            State::Configuration if Configuration(dword).is_enabled() => Ok(State::Disabling),
            State::Configuration => Ok(State::Enabling),
            State::Disabling => Ok(self.await_from(now, State::AwaitingDisabled)),
            State::Enabling => Ok(self.await_from(now, State::AwaitingReady)),
            State::AwaitingDisabled | State::AwaitingReady => {
                self.after_status(now, ControllerStatus(dword))
            }
            State::Identifying => self.after_identify(data),
            State::Queues => {
                let granted = feature::queues_of(dword);
                self.io_queues = granted.min(self.options.io_queues);
                Ok(State::Events)
            }
            State::Events | State::Ready => Ok(State::Ready),
            State::Failed(fault) => Err(fault),
        }
    }

    fn after_connect(&mut self, result: u64) -> Result<State, BringUpFault> {
        let options = &self.options;
        // A discovery controller has no secret of its own.
        let known = self.credentials.as_ref();
        let is_discovery = options.subsystem.is_discovery();
        let known = known.filter(|_| !is_discovery || is_auth_required(result));
        let credentials = known.map(|(credentials, _)| credentials);
        let names = (&options.host, &options.subsystem);
        let auth = authentication(credentials, result, names, || {
            known.expect("just seen").1.clone()
        });
        self.auth = auth?.map(Box::new);
        Ok(if self.auth.is_some() {
            State::Authenticating
        } else {
            State::Capabilities
        })
    }

    fn after_status(&mut self, now: Time, status: ControllerStatus) -> Result<State, BringUpFault> {
        let (is_there, next, awaited) = if self.state == State::AwaitingReady {
            (status.is_ready(), State::Identifying, "ready")
        } else {
            (!status.is_ready(), State::Enabling, "disabled")
        };
        if is_there {
            return Ok(next);
        }
        if status.is_fatal() {
            return Err(BringUpFault::Fatal);
        }
        if now >= self.deadline {
            return Err(BringUpFault::TimedOut { awaited });
        }
        self.polls_at = now + POLL_INTERVAL;
        Ok(self.state)
    }

    fn after_identify(&mut self, data: &[u8]) -> Result<State, BringUpFault> {
        let page = data.first_chunk().ok_or(BringUpFault::Nonsense)?;
        let identity = IdentifyController::decode(page).map_err(|_| BringUpFault::Nonsense)?;
        let is_discovery = identity.is_discovery || self.options.subsystem.is_discovery();
        self.identity = Some(identity);
        Ok(if is_discovery || self.options.io_queues == 0 {
            State::Events
        } else {
            State::Queues
        })
    }

    fn await_from(&mut self, now: Time, state: State) -> State {
        self.polls_at = now;
        let timeout = Duration::from_millis(self.capabilities.ready_timeout_ms());
        self.deadline = now + timeout.max(POLL_INTERVAL);
        state
    }

    /// Only what the controller can tell.
    fn events(&self) -> u32 {
        let offered = self.identity.as_ref().map_or(0, |identity| identity.events);
        self.options.events & offered
    }

    fn connect(&self) -> Request {
        let connect = Connect {
            format: 0,
            queue_id: 0,
            entries_less_one: ADMIN_ENTRIES - 1,
            without_flow_control: true,
            keep_alive_ms: self.options.keep_alive_ms,
        };
        let data = ConnectData {
            host_id: self.options.host_id,
            controller_id: CONTROLLER_ANY,
            subsystem: self.options.subsystem.clone(),
            host: self.options.host.clone(),
        };
        connect_request(&connect, &data)
    }

    fn association(&self) -> Association {
        let entries = self
            .capabilities
            .entries_max()
            .min(u32::from(self.options.entries));
        Association {
            controller_id: self.controller_id,
            identity: self
                .identity
                .clone()
                .expect("identified before it is ready"),
            io_queues: self.io_queues,
            entries: u16::try_from(entries).expect("no more than was asked for"),
            keep_alive_ms: self.options.keep_alive_ms,
            subsystem: self.options.subsystem.clone(),
            host: self.options.host.clone(),
            host_id: self.options.host_id,
            credentials: self
                .credentials
                .as_ref()
                .map(|(credentials, _)| Arc::clone(credentials)),
        }
    }

    fn send(&mut self, request: Request) -> Next {
        self.is_waiting = true;
        Next::Send(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Secret;
    use crate::command::fabrics;

    fn options() -> BringUpOptions {
        BringUpOptions {
            subsystem: Nqn::new("nqn.s").expect("a name"),
            host: Nqn::new("nqn.h").expect("a name"),
            host_id: [1; 16],
            keep_alive_ms: 5000,
            io_queues: 4,
            entries: 128,
            events: feature::events::ANA,
        }
    }

    fn identity(is_discovery: bool) -> Vec<u8> {
        IdentifyController {
            serial: "s".into(),
            model: "m".into(),
            firmware: "f".into(),
            controller_id: 7,
            transfer_pages_log2: 5,
            is_discovery,
            namespaces_max: 1,
            commands_max: 128,
            in_capsule_bytes: 8192,
            optional_commands: 0,
            has_ana: false,
            ana_transition_s: 0,
            caches_writes: false,
            events: 0,
            subsystem: Nqn::new("nqn.s").expect("a name"),
        }
        .encode()
    }

    /// Answers that lead from a new machine to each state, in order.
    const WAY: [u64; 9] = [7, 2 << 24 | 0x3f, 1, 0, 0, 0, 1, 0, 0x0001_0003];

    fn in_state(count: usize) -> BringUp {
        let mut machine = BringUp::new(options());
        for &result in &WAY[..count] {
            assert!(matches!(machine.next(Time::ZERO), Next::Send(_)));
            machine.on_completion(Time::ZERO, Status::SUCCESS, result, &identity(false));
        }
        machine
    }

    #[test]
    fn every_state_answers_every_event() {
        let mut table = String::new();
        for count in 0..=WAY.len() {
            let from = in_state(count).state;
            table += &format!("{from:?}:");
            for (status, result) in [
                (Status::SUCCESS, 0),
                (Status::SUCCESS, 1),
                (Status::SUCCESS, 2),
                (Status::INTERNAL_ERROR, 0),
            ] {
                let mut machine = in_state(count);
                machine.next(Time::ZERO);
                machine.on_completion(Time::ZERO, status, result, &identity(false));
                let after = format!("{:?}", machine.state);
                table += &format!(" {}", after.split(' ').next().unwrap_or_default());
            }
            table += "\n";
        }
        let expected = "\
            Connecting: Capabilities Capabilities Capabilities Failed(Refused\n\
            Capabilities: Configuration Configuration Configuration Failed(Refused\n\
            Configuration: Enabling Disabling Enabling Failed(Refused\n\
            Disabling: AwaitingDisabled AwaitingDisabled AwaitingDisabled Failed(Refused\n\
            AwaitingDisabled: Enabling AwaitingDisabled Enabling Failed(Refused\n\
            Enabling: AwaitingReady AwaitingReady AwaitingReady Failed(Refused\n\
            AwaitingReady: AwaitingReady Identifying Failed(Fatal) Failed(Refused\n\
            Identifying: Queues Queues Queues Failed(Refused\n\
            Queues: Events Events Events Failed(Refused\n\
            Events: Ready Ready Ready Ready\n";
        assert_eq!(table, expected);
    }

    #[test]
    fn what_is_granted_is_what_is_used() {
        let mut machine = in_state(WAY.len());
        machine.next(Time::ZERO);
        machine.on_completion(Time::ZERO, Status::SUCCESS, 0, &[]);
        let Next::Ready(association) = machine.next(Time::ZERO) else {
            panic!("the way leads here")
        };
        assert_eq!((association.controller_id, association.io_queues), (7, 2));
        assert_eq!(association.entries, 64);
        let connect = Connect::of(&association.connect(2).command);
        assert_eq!((connect.queue_id, connect.entries_less_one), (2, 63));
        let entropy = || Entropy::draw(|| 7);
        let asked = |result| {
            let checked = association.check_connected(Status::SUCCESS, result, entropy);
            checked.map(|auth| auth.is_some())
        };
        assert_eq!(asked(1), Ok(false));
        assert_eq!(asked(1 << 17), Err(BringUpFault::AuthRequired));
        assert_eq!(asked(3 << 17), Err(BringUpFault::SecureChannelRequired));
    }

    #[test]
    fn a_host_proves_itself_where_it_is_asked_or_insists() {
        let secret = |byte| Secret::new(&[byte; 32], None).expect("a secret");
        let of = |controller| {
            let credentials = Credentials::new(secret(1), controller);
            BringUp::new(options()).with_credentials(Arc::new(credentials), Entropy::draw(|| 7))
        };
        for (controller, result, is_needed) in [
            (None, 7, false),
            (None, 7 | 1 << 17, true),
            (Some(secret(2)), 7, true),
        ] {
            let mut machine = of(controller);
            machine.next(Time::ZERO);
            machine.on_completion(Time::ZERO, Status::SUCCESS, result, &[]);
            assert_eq!(machine.state == State::Authenticating, is_needed);
            let Next::Send(request) = machine.next(Time::ZERO) else {
                panic!("there is more to do")
            };
            let kind = request.command.fabrics_type();
            assert_eq!(kind == Some(fabrics::AUTH_SEND), is_needed);
            assert!(!machine.is_costly());
        }
        // The challenge is what takes long, and a refusal ends it.
        let mut machine = of(None);
        machine.next(Time::ZERO);
        machine.on_completion(Time::ZERO, Status::SUCCESS, 1 << 17, &[]);
        machine.next(Time::ZERO);
        machine.on_completion(Time::ZERO, Status::SUCCESS, 0, &[]);
        assert!(machine.is_costly());
        machine.next(Time::ZERO);
        let refused = Status::AUTH_REQUIRED.do_not_retry();
        machine.on_completion(Time::ZERO, refused, 0, &[]);
        let fault = BringUpFault::Authentication(AuthFault::Refused(refused));
        assert_eq!(machine.next(Time::ZERO), Next::Failed(fault));
        assert!(!fault.is_retryable());
    }

    #[test]
    fn a_controller_has_its_own_time_and_not_more() {
        let mut machine = in_state(6);
        for ms in 0..=1000 {
            let now = Time::ZERO + Duration::from_millis(ms);
            match machine.next(now) {
                Next::WaitUntil(_) => assert!(ms < 1000),
                Next::Send(_) => machine.on_completion(now, Status::SUCCESS, 0, &[]),
                other => panic!("{other:?} after {ms} ms"),
            }
        }
        let fault = BringUpFault::TimedOut { awaited: "ready" };
        assert_eq!(machine.next(Time::MAX), Next::Failed(fault));
    }

    #[test]
    fn a_discovery_controller_has_no_queues() {
        let mut machine = in_state(7);
        machine.next(Time::ZERO);
        machine.on_completion(Time::ZERO, Status::SUCCESS, 0, &identity(true));
        assert_eq!(machine.state, State::Events);
        let mut machine = in_state(7);
        machine.next(Time::ZERO);
        machine.on_completion(Time::ZERO, Status::SUCCESS, 0, &[0; 8]);
        assert_eq!(machine.state, State::Failed(BringUpFault::Nonsense));
    }
}
