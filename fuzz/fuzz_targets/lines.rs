//! Lines appended by Lua plugins or by any user with write access: the number of doorbells is limited, whatever the content.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let doorbells = mesh_hook::lines::doorbells("mesh", "host", text);
    assert!(doorbells.len() <= text.lines().count());
    for doorbell in doorbells {
        assert!(doorbell.user.len() <= 64 && mesh_events::hooks::canonical_name(&doorbell.hook).is_some());
    }
});
