//! libFuzzer's door to [`lunette_fuzz::p2p`].
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    lunette_fuzz::p2p::p2p(data);
});
