//! libFuzzer's door to [`lunette_fuzz::member`].
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    lunette_fuzz::member::member(data);
});
