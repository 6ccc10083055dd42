//! The network interfaces behind a port's addresses.

use std::fs;
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

/// Whether packets of the interface with this index get out; also where that cannot be told, and of
/// index 0, which addresses of InfiniBand have.
pub(super) fn is_up(index: u32) -> bool {
    index == 0 || name_of(index).is_none_or(|name| is_running(Path::new("/sys/class/net"), &name))
}

fn name_of(index: u32) -> Option<String> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::DGRAM);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).ok()?;
    netdevice::index_to_name(socket, index).ok()
}

/// What the kernel says of an interface: `unknown` is said of those that have no carrier to lose.
fn is_running(folder: &Path, name: &str) -> bool {
    let state = fs::read_to_string(folder.join(name).join("operstate"));
    state.map_or(true, |state| matches!(state.trim(), "up" | "unknown"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_and_their_absence_is_no_state() {
        let folder = std::env::temp_dir().join(format!("lunette-verbs.{}", std::process::id()));
        for (state, expected) in [
            ("up\n", true),
            ("unknown\n", true),
            ("down\n", false),
            ("lowerlayerdown\n", false),
        ] {
            fs::create_dir_all(folder.join("net7")).unwrap();
            fs::write(folder.join("net7/operstate"), state).unwrap();
            assert_eq!(is_running(&folder, "net7"), expected, "{state}");
        }
        fs::remove_dir_all(&folder).unwrap();
        assert!(is_running(&folder, "net7"));
    }

    #[test]
    fn the_loopback_is_up_and_what_is_not_there_is_not_said_to_be_down() {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None).unwrap();
        let index = netdevice::name_to_index(socket, "lo").unwrap();
        assert_eq!(name_of(index).as_deref(), Some("lo"));
        assert!(is_up(index) && is_up(0) && is_up(u32::MAX));
    }
}
