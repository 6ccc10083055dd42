//! What `serve --metrics` tells, as those read it who scrape it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::process::Node;

/// An answer of the server.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) text: String,
}

/// Samples by family: what is behind the name, and the value.
pub(crate) type Families = BTreeMap<String, BTreeMap<String, f64>>;

pub(crate) fn address(node: &Node) -> &str {
    node.ready["metrics"].as_str().expect("it was asked for")
}

/// Sends these bytes and reads until the server closes.
pub(crate) fn ask(node: &Node, request: &[u8]) -> Page {
    let mut stream = TcpStream::connect(address(node)).expect("it listens");
    let patience = Some(Duration::from_secs(20));
    stream.set_read_timeout(patience).expect("a socket");
    stream.write_all(request).expect("it reads");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .expect("an answer, then the end");
    let (head, text) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    Page {
        status: status.expect("a status"),
        head: head.to_owned(),
        text: text.to_owned(),
    }
}

pub(crate) fn get(node: &Node, path: &str) -> Page {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", address(node));
    ask(node, request.as_bytes())
}

/// Status and object of `/health`.
pub(crate) fn health(node: &Node) -> (u16, Value) {
    let page = get(node, "/health");
    let object = serde_json::from_str(&page.text).expect("an object");
    (page.status, object)
}

/// The samples of `/metrics`.
pub(crate) fn scrape(node: &Node) -> Families {
    let page = get(node, "/metrics");
    assert_eq!(page.status, 200, "{}", page.text);
    assert!(
        page.head
            .contains("Content-Type: text/plain; version=0.0.4"),
        "{}",
        page.head
    );
    parse(&page.text)
}

/// One sample; 0 if there is none.
pub(crate) fn value(families: &Families, family: &str, sample: &str) -> f64 {
    let samples = &families[family];
    samples.get(sample).copied().unwrap_or_default()
}

/// Reads the text strictly: each family is explained, typed and told in one piece, each sample is of the
/// family that it stands in, and is there once.
fn parse(text: &str) -> Families {
    assert!(text.ends_with('\n'), "the last line ends");
    let mut families = Families::new();
    let (mut explained, mut family, mut kind) = (String::new(), String::new(), String::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a name and a text");
            assert!(help.ends_with('.'), "a sentence: {line}");
            explained = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, its_kind) = rest.split_once(' ').expect("a name and a type");
            assert_eq!(name, explained, "explained before it is typed");
            (family, kind) = (name.to_owned(), its_kind.to_owned());
            assert!(family.starts_with("lunette_store_"), "{line}");
            assert_eq!(kind == "counter", family.ends_with("_total"), "{line}");
            let former = families.insert(family.clone(), BTreeMap::new());
            assert!(former.is_none(), "in one piece: {line}");
        } else {
            let (sample, value) = line.rsplit_once(' ').expect("a sample and a value");
            let rest = sample.strip_prefix(&family).expect("of its family");
            let is_whole = rest.starts_with('{') || kind == "histogram" && rest.starts_with('_');
            assert!(is_whole && rest.ends_with('}'), "{line}");
            let value = value.parse().expect("a number");
            let samples = families.get_mut(&family).expect("it was typed");
            assert!(
                samples.insert(rest.to_owned(), value).is_none(),
                "twice: {line}"
            );
        }
    }
    check_histogram(&families["lunette_store_request_duration_seconds"]);
    families
}

/// Each bucket has those of the one before, and the last one has all.
fn check_histogram(samples: &BTreeMap<String, f64>) {
    for (sample, count) in samples {
        let Some(labels) = sample.strip_prefix("_count{") else {
            continue;
        };
        let labels = labels.strip_suffix('}').expect("labels");
        let prefix = format!("_bucket{{{labels},le=\"");
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for (bucket, count) in samples {
            if let Some(bound) = bucket.strip_prefix(&prefix) {
                let bound = bound.strip_suffix("\"}").expect("a bound");
                // As Prometheus spells it.
                let bound = if bound == "+Inf" { "inf" } else { bound };
                buckets.push((bound.parse().expect("a number"), *count));
            }
        }
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        let is_rising = buckets.is_sorted_by(|a, b| a.1 <= b.1);
        assert!(is_rising && buckets.len() > 10, "{labels}: {buckets:?}");
        let (last, all) = buckets[buckets.len() - 1];
        assert!(
            last.is_infinite() && all.total_cmp(count).is_eq(),
            "{labels}"
        );
        assert!(samples.contains_key(&format!("_sum{{{labels}}}")));
    }
}
