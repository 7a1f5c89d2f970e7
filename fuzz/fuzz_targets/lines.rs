//! Lines that Lua plugins, and whoever may write into their files, append: bounded doorbells, whatever stands there.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let bells = mesh_hook::lines::doorbells("mesh", "host", text);
    assert!(bells.len() <= text.lines().count());
    for bell in bells {
        assert!(bell.user.len() <= 64 && mesh_events::hooks::canonical_name(&bell.hook).is_some());
    }
});
