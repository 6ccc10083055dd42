//! libFuzzer's door to [`lunette_fuzz::log`].
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    lunette_fuzz::log::log(data);
});
