//! libFuzzer's door to [`lunette_fuzz::engine::lane`].
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    lunette_fuzz::engine::lane::lane(data);
});
