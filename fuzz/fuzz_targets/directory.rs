//! libFuzzer's door to [`lunette_fuzz::directory`].
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    lunette_fuzz::directory::directory(data);
});
