//! The text of `/metrics`: Prometheus' text exposition format, version 0.0.4.
//!
//! Families are a table, so that each is named, explained and typed once. Units are base units: bytes and
//! seconds. `core` tells the cores of the node apart.

use std::fmt::Write;

use lunette::kvstore::{
    CoreReport, HISTOGRAM_BUCKETS, Histogram, MemberReport, RequestReport, TenantReport,
};
use lunette_kvstore_proto::message::{NodeStat, NodeState, Op};

use super::Subject;
use super::drives::append_drives;

/// What is told of a core by one number.
struct Single {
    name: &'static str,
    help: &'static str,
    /// A counter; else a gauge, which may go down.
    is_counter: bool,
    value: fn(&NodeStat) -> u64,
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&NodeStat) -> u64) -> Single {
    Single {
        name,
        help,
        is_counter: false,
        value,
    }
}

const fn counter(name: &'static str, help: &'static str, value: fn(&NodeStat) -> u64) -> Single {
    Single {
        name,
        help,
        is_counter: true,
        value,
    }
}

/// What each core has.
const SINGLES: [Single; 15] = [
    gauge(
        "objects",
        "Objects that are held, or are being written.",
        |stat| stat.shards.entries,
    ),
    gauge(
        "memory_capacity_bytes",
        "Bytes that objects may use.",
        |stat| stat.capacity_bytes,
    ),
    gauge(
        "memory_used_bytes",
        "Bytes that objects use, those that are leaving included.",
        |stat| stat.shards.used_bytes,
    ),
    gauge(
        "memory_free_bytes",
        "Bytes that objects may use beyond those used.",
        NodeStat::free_bytes,
    ),
    gauge(
        "memory_pinned_bytes",
        "Bytes of objects that are pinned for ever.",
        |stat| stat.pinned_bytes,
    ),
    gauge("connections", "Connections that are open.", |stat| {
        stat.connections
    }),
    counter("hits_total", "Gets that found their object here.", |stat| {
        stat.shards.hits
    }),
    counter(
        "misses_total",
        "Gets that found no object; where a home was asked, the home's.",
        |stat| stat.shards.misses,
    ),
    counter(
        "payload_received_bytes_total",
        "Bytes of objects received whole.",
        |stat| stat.payload_in_bytes,
    ),
    counter(
        "payload_sent_bytes_total",
        "Bytes of objects handed over to be sent.",
        |stat| stat.payload_out_bytes,
    ),
    counter(
        "evictions_total",
        "Objects that left to make room.",
        |stat| stat.shards.evictions,
    ),
    counter(
        "evicted_bytes_total",
        "Bytes of objects that left to make room.",
        |stat| stat.shards.evicted_bytes,
    ),
    counter(
        "dropped_objects_total",
        "Objects dropped on order: removed, replaced, or copies too many.",
        |stat| stat.shards.removes,
    ),
    counter(
        "refused_requests_total",
        "Requests for objects that were refused; requests_total says why.",
        |stat| stat.refused,
    ),
    counter(
        "room_waits_total",
        "Writes that found no room at first.",
        |stat| stat.room_waits,
    ),
];

/// What is told of a core of a member by one number.
struct OfMember {
    name: &'static str,
    help: &'static str,
    is_counter: bool,
    value: OfReport,
}

const OF_MEMBERS: [OfMember; 17] = [
    OfMember {
        name: "members",
        help: "Members in the newest map that is known.",
        is_counter: false,
        value: |member| member.members,
    },
    OfMember {
        name: "home_copies",
        help: "Copies of whose place this core, as their home, knows.",
        is_counter: false,
        value: |member| member.home_copies,
    },
    OfMember {
        name: "scarce_keys",
        help: "Keys with fewer copies than are wanted, whose home this core is, where others could take one.",
        is_counter: false,
        value: |member| member.scarce_keys,
    },
    OfMember {
        name: "repairs_total",
        help: "How often this core, as a home, had copies made that were missing.",
        is_counter: true,
        value: |member| member.repairs,
    },
    OfMember {
        name: "abandoned_copies_total",
        help: "Copies that were to leave memory before others, since another of their group had left.",
        is_counter: true,
        value: |member| member.copies_abandoned,
    },
    OfMember {
        name: "back_copies_total",
        help: "Copies that were written here whose keys had left another core for want of room: it is short of memory.",
        is_counter: true,
        value: |member| member.copies_back,
    },
    OfMember {
        name: "cut_off_requests_total",
        help: "Reads and writes that were served although the lease was over.",
        is_counter: true,
        value: |member| member.cut_off,
    },
    OfMember {
        name: "one_sided_reads_total",
        help: "Gets that were told where the bytes lie, and not sent them: of readers on this host, or by RDMA.",
        is_counter: true,
        value: |member| member.one_sided_reads,
    },
    OfMember {
        name: "one_sided_fallbacks_total",
        help: "Gets that did not find there what they had been told of, and came again.",
        is_counter: true,
        value: |member| member.one_sided_fallbacks,
    },
    OfMember {
        name: "handed_over_puts_total",
        help: "Puts of other processes on this host that came by memory which both share.",
        is_counter: true,
        value: |member| member.handed_over,
    },
    OfMember {
        name: "pushed_gets_total",
        help: "Gets whose bytes an RDMA adapter of this core has written to where they belong.",
        is_counter: true,
        value: |member| member.pushed,
    },
    OfMember {
        name: "pushed_bytes_total",
        help: "Bytes that RDMA adapters of this core have written to where they belong.",
        is_counter: true,
        value: |member| member.pushed_bytes,
    },
    OfMember {
        name: "pushes_failed_total",
        help: "Gets that an RDMA adapter of this core was to write, and that had to be asked for once more.",
        is_counter: true,
        value: |member| member.pushes_failed,
    },
    OfMember {
        name: "asked_by_adapters_total",
        help: "Requests that came by messages between RDMA adapters, and not over connections.",
        is_counter: true,
        value: |member| member.asked_by_adapters,
    },
    OfMember {
        name: "pulled_puts_total",
        help: "Puts whose bytes an RDMA adapter of this core has read where they lay.",
        is_counter: true,
        value: |member| member.pulled,
    },
    OfMember {
        name: "pulled_bytes_total",
        help: "Bytes of puts that RDMA adapters of this core have read where they lay.",
        is_counter: true,
        value: |member| member.pulled_bytes,
    },
    OfMember {
        name: "queue_pairs",
        help: "RDMA queue pairs with this core.",
        is_counter: false,
        value: |member| member.queue_pairs,
    },
];

type OfReport = fn(&MemberReport) -> u64;

/// What members count by a label.
struct Labelled {
    name: &'static str,
    help: &'static str,
    label: &'static str,
    values: &'static [(&'static str, OfReport)],
}

const LABELLED: [Labelled; 3] = [
    Labelled {
        name: "dropped_copies_total",
        help: "Copies dropped for another reason than room.",
        label: "cause",
        values: &[
            ("ordered", |member| member.copies_ordered),
            ("cleared", |member| member.copies_cleared),
            ("unrecorded", |member| member.copies_unrecorded),
        ],
    },
    Labelled {
        name: "replicas_total",
        help: "Copies on other nodes that were to be made of objects here.",
        label: "outcome",
        values: &[
            ("made", |member| member.replicas_made),
            ("failed", |member| member.replicas_failed),
        ],
    },
    Labelled {
        name: "messages_total",
        help: "Messages between seats; those that are dropped are said again where it matters.",
        label: "way",
        values: &[
            ("sent", |member| member.messages_sent),
            ("received", |member| member.messages_received),
            ("dropped", |member| member.messages_dropped),
        ],
    },
];

/// The text that is growing.
#[derive(Default)]
pub(super) struct Text(String);

impl Text {
    fn family(&mut self, name: &str, help: &str, kind: &str) {
        self.line(format_args!("# HELP lunette_store_{name} {help}"));
        self.line(format_args!("# TYPE lunette_store_{name} {kind}"));
    }

    pub(super) fn single(&mut self, name: &str, help: &str, is_counter: bool) {
        self.family(name, help, if is_counter { "counter" } else { "gauge" });
    }

    pub(super) fn sample(&mut self, name: &str, labels: &str, value: u64) {
        self.line(format_args!("lunette_store_{name}{{{labels}}} {value}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("a string takes everything");
    }
}

/// What the cores of a node have counted.
pub(super) fn text(subject: Subject, reports: &[CoreReport]) -> String {
    let mut text = Text::default();
    append_node(&mut text, subject, reports);
    for Single {
        name,
        help,
        is_counter,
        value,
    } in SINGLES
    {
        text.single(name, help, is_counter);
        for report in reports {
            text.sample(name, &core_label(report), value(&report.stat));
        }
    }
    append_copies(&mut text, reports);
    append_requests(&mut text, reports);
    append_durations(&mut text, reports);
    if reports.iter().any(|report| report.member.is_some()) {
        append_members(&mut text, reports);
        append_tenants(&mut text, reports);
    }
    append_drives(&mut text, reports);
    text.0
}

fn append_node(text: &mut Text, subject: Subject, reports: &[CoreReport]) {
    text.family("info", "Which program this is.", "gauge");
    let (version, node) = (env!("CARGO_PKG_VERSION"), subject.node_id);
    let labels = format!("version=\"{version}\",node=\"{node}\"");
    text.sample("info", &labels, 1);
    let mut stat = NodeStat::default();
    for report in reports {
        stat.add(&report.stat);
    }
    text.family("state", "What the node is doing: 1 for that.", "gauge");
    for state in &NodeState::ALL[1..] {
        let labels = format!("state=\"{}\"", state.word());
        text.sample("state", &labels, (stat.state() == *state).into());
    }
}

fn append_copies(text: &mut Text, reports: &[CoreReport]) {
    let help = "Copies of objects that came to be here, by a write or as replicas.";
    text.family("copies_total", help, "counter");
    for report in reports {
        let core = core_label(report);
        let labels = format!("{core},kind=\"write\"");
        text.sample("copies_total", &labels, report.copies_written);
        if let Some(member) = &report.member {
            let labels = format!("{core},kind=\"replica\"");
            text.sample("copies_total", &labels, member.copies_replicated);
        }
    }
    let help = "Copies that were moved within memory, so that a longer one has room in one piece.";
    text.family("moved_copies_total", help, "counter");
    for report in reports {
        text.sample(
            "moved_copies_total",
            &core_label(report),
            report.copies_moved,
        );
    }
    text.family("moved_bytes_total", "Bytes of those.", "counter");
    for report in reports {
        text.sample("moved_bytes_total", &core_label(report), report.moved_bytes);
    }
}

fn append_requests(text: &mut Text, reports: &[CoreReport]) {
    let help = "Requests by operation and by how they ended.";
    text.family("requests_total", help, "counter");
    for (report, request) in each_request(reports) {
        // Those that ended well are there from the beginning, so that their rates are.
        let ended = request.by_outcome().enumerate();
        for (index, (outcome, count)) in ended {
            if count > 0 || index == 0 {
                let (core, op) = (core_label(report), op_word(request.op));
                let labels = format!("{core},op=\"{op}\",outcome=\"{}\"", outcome.word());
                text.sample("requests_total", &labels, count);
            }
        }
    }
}

fn append_durations(text: &mut Text, reports: &[CoreReport]) {
    let name = "request_duration_seconds";
    let help = "How long requests took from when they were read to when they were answered; \
                what is answered at once counts as nothing.";
    text.family(name, help, "histogram");
    for (report, request) in each_request(reports) {
        let labels = format!("{},op=\"{}\"", core_label(report), op_word(request.op));
        let mut count = 0;
        for bucket in 0..HISTOGRAM_BUCKETS {
            count += request.durations.buckets[bucket];
            let bound = Histogram::bound(bucket).map(|bound| bound.as_secs_f64());
            let bound = bound.map_or_else(|| "+Inf".to_owned(), |bound| bound.to_string());
            let labels = format!("{labels},le=\"{bound}\"");
            text.sample(&format!("{name}_bucket"), &labels, count);
        }
        let sum_ns = request.durations.sum_ns;
        let (seconds, nanoseconds) = (sum_ns / 1_000_000_000, sum_ns % 1_000_000_000);
        text.line(format_args!(
            "lunette_store_{name}_sum{{{labels}}} {seconds}.{nanoseconds:09}"
        ));
        text.sample(&format!("{name}_count"), &labels, count);
    }
}

fn append_members(text: &mut Text, reports: &[CoreReport]) {
    text.family(
        "epoch",
        "The epoch of the newest map that is known.",
        "gauge",
    );
    for report in reports {
        text.sample("epoch", &core_label(report), report.stat.epoch);
    }
    let help = "How long the lease is sure to last; 0 once it is over.";
    text.family("lease_seconds", help, "gauge");
    for report in reports {
        let (left_ms, core) = (report.stat.lease_left_ms, core_label(report));
        text.line(format_args!(
            "lunette_store_lease_seconds{{{core}}} {}.{:03}",
            left_ms / 1000,
            left_ms % 1000
        ));
    }
    let members = || {
        let both = reports.iter().filter_map(|report| {
            let member = report.member.as_ref()?;
            Some((core_label(report), member))
        });
        both.collect::<Vec<_>>()
    };
    for family in OF_MEMBERS {
        text.single(family.name, family.help, family.is_counter);
        for (core, member) in members() {
            text.sample(family.name, &core, (family.value)(member));
        }
    }
    for family in LABELLED {
        text.family(family.name, family.help, "counter");
        for (core, member) in members() {
            for (word, value) in family.values {
                let labels = format!("{core},{}=\"{word}\"", family.label);
                text.sample(family.name, &labels, value(member));
            }
        }
    }
}

fn append_tenants(text: &mut Text, reports: &[CoreReport]) {
    type Value = fn(&TenantReport) -> u64;
    let families: [(&str, &str, Value); 2] = [
        (
            "tenant_copies",
            "Copies that a tenant has here, without those that are leaving.",
            |tenant| tenant.copies,
        ),
        ("tenant_memory_bytes", "Bytes that they take.", |tenant| {
            tenant.copies_bytes
        }),
    ];
    for (name, help, value) in families {
        text.family(name, help, "gauge");
        for report in reports {
            for tenant in &report.tenants {
                let (core, word) = (core_label(report), escaped(&tenant.name));
                let labels = format!("{core},tenant=\"{word}\"");
                text.sample(name, &labels, value(tenant));
            }
        }
    }
    append_quotas(text, reports);
}

/// Of those that have quotas.
fn append_quotas(text: &mut Text, reports: &[CoreReport]) {
    type Value = fn(&TenantReport) -> Option<u64>;
    let families: [(&str, &str, Value); 2] = [
        (
            "tenant_quota_bytes",
            "What a tenant may have of all members' memory.",
            |tenant| tenant.quota_bytes,
        ),
        (
            "tenant_credit_bytes",
            "What of that it may have here without asking.",
            |tenant| tenant.credit_bytes,
        ),
    ];
    for (name, help, value) in families {
        text.family(name, help, "gauge");
        for report in reports {
            for tenant in &report.tenants {
                if let Some(value) = value(tenant) {
                    let (core, word) = (core_label(report), escaped(&tenant.name));
                    let labels = format!("{core},tenant=\"{word}\"");
                    text.sample(name, &labels, value);
                }
            }
        }
    }
}

/// As the value of a label.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    text.replace('\n', "\\n")
}

fn each_request<'a>(
    reports: &'a [CoreReport],
) -> impl Iterator<Item = (&'a CoreReport, &'a RequestReport)> {
    let each =
        |report: &'a CoreReport| report.requests.iter().map(move |request| (report, request));
    reports.iter().flat_map(each)
}

pub(super) fn core_label(report: &CoreReport) -> String {
    format!("core=\"{}\"", report.core.0)
}

const fn op_word(op: Option<Op>) -> &'static str {
    match op {
        None => "unknown",
        Some(Op::Get) => "get",
        Some(Op::Put) => "put",
        Some(Op::Exists) => "exists",
        Some(Op::Remove) => "remove",
        Some(Op::Stat) => "stat",
        Some(Op::Map) => "map",
        Some(Op::Tell) => "tell",
        Some(Op::Ask) => "ask",
        Some(Op::Write) => "write",
        Some(Op::Find) => "find",
        Some(Op::Read) => "read",
        Some(Op::Replicate) => "replicate",
        Some(Op::Reserve) => "reserve",
        Some(Op::Fill) => "fill",
        Some(Op::Commit) => "commit",
        Some(Op::Revoke) => "revoke",
        Some(Op::Clear) => "clear",
        Some(Op::Retire) => "retire",
        Some(Op::Clock) => "clock",
        Some(Op::Peek) => "peek",
        Some(Op::Meet) => "meet",
        Some(Op::FindNear) => "find_near",
        Some(Op::ReadNear) => "read_near",
        Some(Op::Gather) => "gather",
        Some(Op::Scatter) => "scatter",
        Some(Op::Adapters) => "adapters",
        Some(Op::Pair) => "pair",
        Some(Op::FindPushed) => "find_pushed",
        Some(Op::ReadPushed) => "read_pushed",
        Some(Op::FindFar) => "find_far",
        Some(Op::ReadFar) => "read_far",
        Some(Op::Reach) => "reach",
        Some(Op::PairAsking) => "pair_asking",
        Some(Op::WritePulled) => "write_pulled",
        Some(Op::Quota) => "quota",
        Some(Op::List) => "list",
    }
}
