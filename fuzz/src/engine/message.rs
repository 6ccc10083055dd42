//! Any bytes as the body of each operation, and as a script for the table of segments.

use lunette_runtime_core::codec::Reader;
use lunette_transfer_proto::engine::message::{
    Descriptor, Introduction, NOTE_BYTES_MAX, Operation, Place, Refusal, TOKEN_BYTES, read_name,
    read_note, read_places, read_token, write_note, write_places,
};
use lunette_transfer_proto::engine::one_sided::{
    Pairing, read_adapters, read_segment, read_windows, write_adapters, write_segment,
    write_windows,
};
use lunette_transfer_proto::engine::same_host::commands::{
    COMMAND_WORDS, COMMANDS_MAX, Command, answer_from_word, answer_to_word, between,
};
use lunette_transfer_proto::engine::same_host::packet::Packet;
use lunette_transfer_proto::engine::segment::SEGMENT_NAME_BYTES_MAX;
use lunette_transfer_proto::engine::siblings::{Greeting, read_ports, write_ports};
use lunette_transfer_proto::engine::slices::SLICE_PARTS_MAX;

use super::segments;

/// What an input reached. A corpus is judged by what its files reach together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Lists of places that were read.
    pub places: u32,
    /// Notifications that were.
    pub notes: u32,
    /// Writes: a notification, or that there is none, and places.
    pub writes: u32,
    /// Descriptors.
    pub descriptors: u32,
    /// Names.
    pub names: u32,
    /// Operations.
    pub operations: u32,
    /// Packets between engines of one host.
    pub packets: u32,
    /// Introductions of such engines.
    pub introductions: u32,
    /// Tokens of capabilities.
    pub tokens: u32,
    /// Greetings of engines of several cores.
    pub greetings: u32,
    /// Lists of their ports.
    pub ports: u32,
    /// Bodies that made no sense.
    pub faults: u32,
    /// Segments that were registered.
    pub registered: u32,
    /// Segments that were not.
    pub refused: u32,
    /// Segments that were unregistered.
    pub unregistered: u32,
    /// Accesses that were allowed.
    pub allowed: u32,
    /// Accesses to what is not registered any more.
    pub stale: u32,
    /// Accesses that a segment does not allow.
    pub forbidden: u32,
    /// Accesses outside a segment.
    pub out_of_range: u32,
    /// Segments that were found by name.
    pub found_by_name: u32,
    /// Windows of a segment.
    pub windows: u32,
    /// Steps of a handshake of adapters.
    pub pairings: u32,
    /// Segments that were found by address.
    pub found_by_address: u32,
}

/// Drives what reads a peer's bodies with any bytes.
///
/// # Panics
/// If an invariant does not hold: that is what it is for.
pub fn message(data: &[u8]) -> Reached {
    let mut reached = Reached::default();
    codes(data, &mut reached);
    places(data, &mut reached);
    note(data, &mut reached);
    write(data, &mut reached);
    descriptor(data, &mut reached);
    same_host(data, &mut reached);
    siblings(data, &mut reached);
    one_sided(data, &mut reached);
    match read_name(data) {
        Ok(name) => {
            assert_eq!(name, data, "a name is its body");
            assert!((1..=SEGMENT_NAME_BYTES_MAX).contains(&name.len()));
            reached.names += 1;
        }
        Err(_) => reached.faults += 1,
    }
    match read_token(data) {
        Ok(token) => {
            assert_eq!(token, data, "a token is its body");
            reached.tokens += 1;
        }
        Err(_) => {
            assert_ne!(data.len(), TOKEN_BYTES, "what is as long is one");
            reached.faults += 1;
        }
    }
    segments::drive(data, &mut reached);
    reached
}

fn codes(data: &[u8], reached: &mut Reached) {
    let Ok(code) = Reader::new(data).u16() else {
        return;
    };
    if let Some(operation) = Operation::from_wire(code) {
        assert_eq!(operation.to_wire(), code);
        reached.operations += 1;
    }
    let status = Refusal::from_wire(code).map_or(0, Refusal::to_wire);
    assert_eq!(status, code, "a status is told again as it was");
}

fn one_sided(data: &[u8], reached: &mut Reached) {
    let mut again = Vec::new();
    match read_windows(data) {
        Ok(windows) => {
            write_windows(&mut again, &windows);
            assert_eq!(again, data, "windows have one form");
            reached.windows += 1;
        }
        Err(_) => reached.faults += 1,
    }
    if let Ok(pairing) = Pairing::decode(data) {
        again.clear();
        pairing.encode(&mut again);
        assert_eq!(again, data, "a step of a handshake has one form");
        reached.pairings += 1;
    }
    if let Ok(count) = read_adapters(data) {
        again.clear();
        write_adapters(&mut again, count);
        assert_eq!(again, data, "a count has one form");
    }
    if let Ok(segment) = read_segment(data) {
        again.clear();
        write_segment(&mut again, segment);
        assert_eq!(again, data, "an id has one form");
    }
}

fn same_host(data: &[u8], reached: &mut Reached) {
    match Packet::decode(data) {
        Ok(packet) => {
            assert_eq!(packet.encode(), data, "a packet has one form");
            reached.packets += 1;
        }
        Err(_) => reached.faults += 1,
    }
    if let Ok(introduction) = Introduction::decode(data) {
        let mut again = Vec::new();
        introduction.encode(&mut again);
        assert_eq!(again, data, "an introduction has one form");
        reached.introductions += 1;
    }
    let words: Vec<u64> = data
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word))
        .collect();
    if let Some((&words, rest)) = words.split_first_chunk::<COMMAND_WORDS>() {
        assert_eq!(Command::from_words(words).to_words(), words);
        if let [carried_out, submitted, ..] = *rest {
            let count = between(carried_out, submitted);
            assert!(count.is_none_or(|count| count <= COMMANDS_MAX));
        }
    }
    for word in words {
        let answer = answer_from_word(word);
        let back = answer_to_word(answer);
        assert!(back == word || answer == Err(Refusal::Malformed));
    }
}

fn siblings(data: &[u8], reached: &mut Reached) {
    if let Ok(greeting) = Greeting::decode(data) {
        let mut again = Vec::new();
        greeting.encode(&mut again);
        assert_eq!(again, data, "a greeting has one form");
        assert!(greeting.core < greeting.cores);
        reached.greetings += 1;
    }
    if let Ok(ports) = read_ports(data) {
        let mut again = Vec::new();
        write_ports(&mut again, &ports);
        assert_eq!(again, data, "ports have one form");
        reached.ports += 1;
    }
}

fn read_all(reader: &mut Reader<'_>) -> Option<Vec<Place>> {
    let places = read_places(reader).ok()?;
    let count = places.len();
    let places: Vec<Place> = places.collect();
    assert_eq!(places.len(), count);
    assert!((1..=SLICE_PARTS_MAX).contains(&count) && reader.is_empty());
    Some(places)
}

fn places(data: &[u8], reached: &mut Reached) {
    let Some(places) = read_all(&mut Reader::new(data)) else {
        reached.faults += 1;
        return;
    };
    let mut again = Vec::new();
    write_places(&mut again, places.into_iter());
    assert_eq!(again, data, "places have one form");
    reached.places += 1;
}

fn note(data: &[u8], reached: &mut Reached) {
    let mut reader = Reader::new(data);
    let Ok(note) = read_note(&mut reader) else {
        reached.faults += 1;
        return;
    };
    assert!(note.is_none_or(|note| note.id > 0 && note.bytes.len() <= NOTE_BYTES_MAX));
    let mut again = Vec::new();
    write_note(&mut again, note);
    again.extend_from_slice(reader.rest());
    assert_eq!(again, data, "a notification has one form");
    reached.notes += u32::from(note.is_some());
}

fn write(data: &[u8], reached: &mut Reached) {
    let mut reader = Reader::new(data);
    let Ok(note) = read_note(&mut reader) else {
        return;
    };
    let Some(places) = read_all(&mut reader) else {
        return;
    };
    let mut again = Vec::new();
    write_note(&mut again, note);
    write_places(&mut again, places.into_iter());
    assert_eq!(again, data, "a write has one form");
    reached.writes += 1;
}

fn descriptor(data: &[u8], reached: &mut Reached) {
    let mut reader = Reader::new(data);
    let Ok(descriptor) = Descriptor::decode(&mut reader) else {
        reached.faults += 1;
        return;
    };
    let mut again = Vec::new();
    descriptor.encode(&mut again);
    again.extend_from_slice(reader.rest());
    assert_eq!(again, data, "a descriptor has one form");
    reached.descriptors += 1;
}
