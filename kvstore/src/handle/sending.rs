//! Short objects that threads put at homes on other hosts themselves, by [lines](super::lines): a part of
//! [`Handing`](super::Handing).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{
    SCATTERED_BYTES_MAX, SCATTERED_MAX, ScatterHead, ScatterMessage, ScatterWrite, Scattered,
    WAIT_MS_MAX,
};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::placement::Seat;
use lunette_runtime_core::checksum::{crc32c, joined_crc32c};
use lunette_runtime_core::ids::RequestId;
use lunette_transfer::LineSink;

use super::cores::Cores;
use super::handing::Object;
use super::lent::Lent;
use super::round::{Ended, Round, went};
use crate::cluster_client::{HomeLine, PutOptions, retention_in};
use crate::joined::Joined;

/// Longer objects are left to cores, which send them from where they lie.
const VALUE_BYTES_MAX: usize = 64 * 1024;
/// All that one thread sends at a time: it copies that.
const BYTES_MAX: usize = 256 * 1024;

/// Share of its time that a home may wait for what is in the way: a core tries for the rest of it, and elsewhere.
const WAIT_SHARE: u32 = 4;

const _: () = assert!(BYTES_MAX <= SCATTERED_BYTES_MAX as usize);

/// What a home is sent, and answers.
pub(super) struct Sent {
    pub(super) objects: Vec<Object>,
    /// What came of each, in their order; none if the home does not say.
    pub(super) scattered: Vec<Scattered>,
    /// Whether the home does not make sense: what it has done is unknown.
    pub(super) is_nonsense: bool,
    version: FormatVersion,
    /// Whether the home knows such requests.
    is_known: Arc<AtomicBool>,
}

/// Sends short objects to their homes, if threads may; else they are given back.
pub(super) fn send(
    cores: &Cores,
    options: &PutOptions,
    objects: Vec<Object>,
) -> Result<Round<Sent>, Vec<Object>> {
    let homes = homes(cores, &objects);
    let Some(homes) = homes.filter(|_| !cores.is_inside()) else {
        return Err(objects);
    };
    let items = objects.len();
    let mut objects: Vec<Option<Object>> = objects.into_iter().map(Some).collect();
    let mut timeout = Duration::ZERO;
    let round = Round::begin(cores, (homes, items), |seat, home, places| {
        timeout = timeout.max(home.timeout);
        let places = places.into_iter();
        let theirs = places.map(|place| objects[place].take().expect("of one home"));
        ask(cores, options, (seat, home), theirs.collect())
    });
    match round {
        Ok(round) => Ok(round.within(timeout)),
        Err(_homes) => Err(objects.into_iter().flatten().collect()),
    }
}

/// The homes of the objects, each with their places, if a thread is to send them.
fn homes(cores: &Cores, objects: &[Object]) -> Option<BTreeMap<Seat, Vec<usize>>> {
    let mut left = Vec::with_capacity(objects.len());
    let mut left_bytes = 0;
    for (place, object) in objects.iter().enumerate() {
        let len_bytes = object.len_bytes();
        left_bytes += len_bytes;
        if !(1..=VALUE_BYTES_MAX).contains(&len_bytes) || left_bytes > BYTES_MAX {
            return None;
        }
        let key = cores.tenant().key(&object.key);
        left.push((cores.tenant().check(&key).ok()?.fingerprint(), place));
    }
    let (_, homes) = cores.far_homes(left.into_iter())?;
    let is_one_message = homes.values().all(|places| places.len() <= SCATTERED_MAX);
    is_one_message.then_some(homes)
}

/// Sends a home its objects.
fn ask(
    cores: &Cores,
    options: &PutOptions,
    (seat, home): (Seat, &mut HomeLine),
    objects: Vec<Object>,
) -> (Sent, Option<Ended>) {
    let sent = |objects, home: &HomeLine| Sent {
        objects,
        scattered: Vec::new(),
        is_nonsense: false,
        version: home.version,
        is_known: Arc::clone(&home.scatters),
    };
    let in_all: usize = objects.iter().map(Object::len_bytes).sum();
    let takes = home.line.agreement().payload_bytes_max as usize;
    let is_known = home.scatters.load(Ordering::Relaxed);
    // A peer that has gone meanwhile is found out before anything is sent that it might have done.
    if in_all > takes || !is_known || !home.line.is_quiet() {
        return (sent(objects, home), Some(Ended::Unasked));
    }
    let tenant = cores.tenant();
    let first = home.next_request;
    home.next_request += objects.len() as u64;
    let (keys, lens): (Vec<_>, Vec<_>) = objects
        .iter()
        .map(|object| (tenant.key(&object.key), object.len_bytes()))
        .unzip();
    let mut payload = home.line.payload(in_all);
    let mut joined = Joined::new();
    let mut writes = Vec::with_capacity(objects.len());
    for (request, ((object, key), len)) in (first..).zip(objects.iter().zip(&keys).zip(lens)) {
        let (value, rest) = payload.split_at_mut(len);
        payload = rest;
        let (crc32c, len_bytes) = (copy_out(&object.value, value), len);
        let len_bytes = u32::try_from(len_bytes).expect("it is short");
        joined.push(crc32c, len_bytes);
        writes.push(ScatterWrite {
            request: RequestId(request),
            len_bytes,
            crc32c,
            retention: retention_in(tenant, &object.options(options), object.among.is_last),
            key: Key::new(key).expect("it has a home"),
        });
    }
    let wait = home.timeout / WAIT_SHARE;
    let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
    let head = ScatterHead {
        asker: home.asker,
        over_below: RequestId(first),
        to: seat,
        kind: options.kind,
        namespace: home.namespace,
        wanted: options.copies,
        wait_ms: wait_ms.min(WAIT_MS_MAX),
    };
    let (message, version) = (ScatterMessage { head, writes }, home.version);
    let body = |out: &mut Vec<u8>| message.encode(version, out);
    let line = &mut home.line;
    let asked = line.ask_with_payload(Op::Scatter.code(), body, joined.crc32c());
    let ended = went(&home.line, asked);
    (sent(objects, home), ended)
}

/// Copies what lies in pieces, one after the other, over as many bytes; their checksum.
fn copy_out(pieces: &[Lent], mut to: &mut [u8]) -> u32 {
    let mut checksum = crc32c(&[]);
    for piece in pieces {
        let (now, later) = to.split_at_mut(piece.len());
        let then = piece.copy_out_summed(now);
        checksum = joined_crc32c(checksum, then, now.len() as u64);
        to = later;
    }
    checksum
}

impl LineSink for Sent {
    fn on_answer(&mut self, status: u16, body: &[u8], _payload_len_bytes: usize) {
        match Status::from_code(status) {
            Status::Ok => {}
            Status::Unsupported => return self.is_known.store(false, Ordering::Relaxed),
            // A core learns why when it asks.
            _ => return,
        }
        match Scattered::decode(self.version, body, self.objects.len()) {
            Ok(scattered) => self.scattered = scattered,
            Err(fault) => {
                tracing::warn!(%fault, "a node's answer makes no sense");
                self.is_nonsense = true;
            }
        }
    }

    fn on_payload(&mut self, _bytes: &[u8]) {}
}
