//! libFuzzer's door to [`lunette_fuzz::cluster`].
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    lunette_fuzz::cluster::cluster(data);
});
