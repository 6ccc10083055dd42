//! The log of a drive is read.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore_log::effect::Effect;
use lunette_kvstore_log::log::Log;
use lunette_kvstore_log::recovery::{OpenFault, Recovery, RecoveryReport};
use lunette_runtime::arena::{Arena, Region};
use lunette_runtime::{Signal, can_spawn, spawn_local, time};

use super::device::Device;
use super::driving;
use super::remote::Patience;

/// How long a drive that is away is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Reads the drive, many places at a time.
pub(super) async fn recover(
    device: &Rc<Device>,
    arena: &Arena,
    recovery: Recovery,
) -> Result<(Log, RecoveryReport), OpenFault> {
    let patience = Patience::Until(time::now() + PATIENCE);
    let recovering = Rc::new(Recovering {
        machine: RefCell::new(recovery),
        moved: Signal::default(),
    });
    loop {
        while let Some(effect) = recovering.next() {
            let (device, arena) = (Rc::clone(device), arena.clone());
            let reading = Rc::clone(&recovering).read(device, arena, effect, patience);
            if can_spawn() {
                spawn_local(reading);
            } else {
                reading.await;
            }
        }
        if recovering.machine.borrow().is_done() {
            break;
        }
        recovering.moved.raised().await;
    }
    let read = Rc::into_inner(recovering).expect("each read is over, and its task");
    read.machine.into_inner().finish(time::now())
}

/// A drive that is being read.
struct Recovering {
    machine: RefCell<Recovery>,
    moved: Signal,
}

impl Recovering {
    fn next(&self) -> Option<Effect> {
        self.machine.borrow_mut().poll_effect()
    }

    async fn read(
        self: Rc<Self>,
        device: Rc<Device>,
        arena: Arena,
        effect: Effect,
        patience: Patience,
    ) {
        let Effect::Read {
            op,
            offset_bytes,
            len_bytes,
            ..
        } = effect
        else {
            return;
        };
        let part = (offset_bytes, len_bytes);
        let read = driving::read(&device, &arena, part, patience).await;
        let bytes = read.as_ref().map(Region::as_slice).map_err(|fault| *fault);
        self.machine.borrow_mut().read_done(op, bytes);
        self.moved.raise();
    }
}
