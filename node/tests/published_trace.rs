//! The reference's ratios on the conversation trace, or on the generated one where it is not at
//! hand: `LUNETTE_TRACE_DIR` names the folder that holds `conversation_trace.jsonl`.

use std::env;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use lunette::trace::Request;
use lunette::trace::format::TraceReader;
use lunette::trace::generator::{Generator, REQUESTS_DEFAULT};
use lunette::trace::reference::{HitCount, Lru};

/// A trace and the block hit ratios known of it at 10,000 and 30,000 blocks and without a bound.
fn trace() -> (Vec<Request>, [f64; 3]) {
    let folder = env::var_os("LUNETTE_TRACE_DIR").map(PathBuf::from);
    let path = folder.map(|folder| folder.join("conversation_trace.jsonl"));
    let Some(path) = path.filter(|path| path.exists()) else {
        let requests = usize::try_from(REQUESTS_DEFAULT).expect("few");
        let generated = Generator::new(1).take(requests).collect();
        return (generated, [0.2235, 0.3314, 0.3633]);
    };
    let file = BufReader::new(File::open(path).expect("the trace can be read"));
    let read: Result<Vec<Request>, _> = TraceReader::new(file).collect();
    (read.expect("a good trace"), [0.2116, 0.3257, 0.3664])
}

#[test]
fn the_reference_reaches_the_known_ratios() {
    let (requests, known) = trace();
    assert_eq!(requests.len(), 12_031);
    for (blocks_max, known) in [10_000, 30_000, usize::MAX].into_iter().zip(known) {
        let (mut lru, mut count) = (Lru::new(blocks_max), HitCount::default());
        for request in &requests {
            lru.serve(request, &mut count);
        }
        let ratio = count.block_ratio();
        assert!((ratio - known).abs() < 0.001, "{blocks_max}: {ratio}");
        assert!(count.prefix_ratio() <= ratio);
        assert!((count.token_ratio() - ratio).abs() < 0.01);
    }
}
