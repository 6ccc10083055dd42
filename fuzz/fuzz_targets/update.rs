//! libFuzzer's door to [`lunette_fuzz::update`].
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    lunette_fuzz::update::update(data);
});
