//! The claim of a drive, kept alive by a task for as long as the drive is used.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use lunette_kvstore_log::claim::{Claim, ClaimEffect, ClaimRefused, ClaimState, ClaimTerms};
use lunette_kvstore_log::effect::DeviceFault;
use lunette_kvstore_log::format::BLOCK_BYTES;
use lunette_kvstore_log::format::claim::{CLAIM_OFFSET_BYTES, HolderName};
use lunette_runtime::arena::{Arena, RegionMut};
use lunette_runtime::{Signal, can_spawn, spawn_local, time};
use lunette_runtime_core::time::Time;
use rustix::system::uname;

use super::device::On;
use super::holder::Holder;
use super::remote::Patience;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Whether a drive may be written, which is claimed. The claim is given up when this is dropped.
#[derive(Debug)]
pub(super) struct Holding {
    shared: Rc<Shared>,
}

#[derive(Debug)]
struct Shared {
    claim: RefCell<Claim>,
    waiters: RefCell<Vec<Waker>>,
    is_unused: Cell<bool>,
    /// Raised when it is not used any more.
    stopped: Signal,
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.shared.is_unused.set(true);
        self.shared.stopped.raise();
    }
}

impl Holding {
    /// Claims what begins there on a device, for `holder`. `arena` has room for a block.
    pub(super) async fn take(
        (on, begin_bytes): (Rc<On>, u64),
        terms: ClaimTerms,
        holder: Holder,
        arena: &Arena,
    ) -> Result<Self, ClaimRefused> {
        let block = arena.alloc(BLOCK).map_err(|error| {
            tracing::warn!(%error, "no memory for the claim of a drive");
            DeviceFault
        })?;
        if !can_spawn() {
            return Err(DeviceFault.into());
        }
        let host = uname().nodename().to_string_lossy().into_owned();
        let name = HolderName::new(&format!("{host}/{}", std::process::id()));
        let shared = Rc::new(Shared {
            claim: RefCell::new(Claim::new(terms, holder.id, name, time::now())),
            waiters: RefCell::default(),
            is_unused: Cell::new(false),
            stopped: Signal::default(),
        });
        let keeper = Keeper {
            shared: Rc::clone(&shared),
            holder,
            on,
            at_bytes: begin_bytes + CLAIM_OFFSET_BYTES,
            block: Some(block),
        };
        spawn_local(keeper.keep());
        let holding = Self { shared };
        loop {
            match holding.shared.state() {
                ClaimState::Held => return Ok(holding),
                ClaimState::Refused(why) => return Err(why),
                ClaimState::Claiming => holding.shared.changed().await,
                ClaimState::Released => return Err(DeviceFault.into()),
            }
        }
    }

    /// Waits until the drive may be written.
    ///
    /// # Errors
    /// It never may again.
    pub(super) async fn ready(&self) -> Result<(), DeviceFault> {
        loop {
            if self.shared.claim.borrow().may_write(time::now()) {
                return Ok(());
            }
            if self.shared.is_over() {
                return Err(DeviceFault);
            }
            self.shared.changed().await;
        }
    }
}

impl Shared {
    fn state(&self) -> ClaimState {
        self.claim.borrow().state()
    }

    fn is_over(&self) -> bool {
        matches!(self.state(), ClaimState::Released | ClaimState::Refused(_))
    }

    /// Waits until something has happened to the claim.
    async fn changed(&self) {
        let mut is_told = false;
        poll_fn(|cx| {
            if is_told {
                return Poll::Ready(());
            }
            is_told = true;
            self.waiters.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn tell(&self) {
        for waiter in self.waiters.take() {
            waiter.wake();
        }
    }
}

/// Who keeps a claim alive.
struct Keeper {
    shared: Rc<Shared>,
    holder: Holder,
    on: Rc<On>,
    at_bytes: u64,
    block: Option<RegionMut>,
}

impl Keeper {
    async fn keep(mut self) {
        let mut is_released = false;
        while !self.shared.is_over() {
            if self.shared.is_unused.get() && !is_released {
                is_released = true;
                self.shared.claim.borrow_mut().release(time::now());
            }
            let effect = self.shared.claim.borrow_mut().poll_effect(time::now());
            match effect {
                Some(effect) => self.carry_out(effect).await,
                None => self.wait().await,
            }
            self.look_for_holder();
            self.shared.tell();
        }
        self.shared.tell();
        if self.shared.state() == ClaimState::Released {
            self.holder.end();
        }
        if let ClaimState::Refused(why) = self.shared.state()
            && !self.shared.is_unused.get()
        {
            tracing::error!(%why, "a drive is not to be had: nothing is written to it from now on");
        }
    }

    /// Who is watched may have ended, as this host knows.
    fn look_for_holder(&self) {
        let mut claim = self.shared.claim.borrow_mut();
        if let Some(holder) = claim.watched()
            && self.holder.is_gone(holder)
        {
            claim.has_ended(time::now(), holder);
        }
    }

    /// Until the claim wants something, or is not used any more.
    async fn wait(&self) {
        let at = self.shared.claim.borrow().poll_timeout();
        let mut sleep = pin!(time::sleep_until(at.unwrap_or(Time::MAX)));
        poll_fn(|cx| match self.shared.stopped.poll(cx.waker()) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => sleep.as_mut().poll(cx),
        })
        .await;
    }

    async fn carry_out(&mut self, effect: ClaimEffect) {
        let mut block = self.block.take().expect("one operation at a time");
        let claim = &self.shared.claim;
        self.block = Some(match effect {
            ClaimEffect::Read => {
                let patience = Patience::Brisk;
                let (result, block) = self.on.read(block, BLOCK, self.at_bytes, patience).await;
                let bytes = result.map(|()| block.as_slice()).map_err(|_| DeviceFault);
                claim.borrow_mut().read_done(time::now(), bytes);
                block
            }
            ClaimEffect::Write(bytes) => {
                block.as_mut_slice()[..BLOCK].copy_from_slice(&*bytes);
                let (mut result, block) = self.on.write(block, BLOCK, self.at_bytes, None).await;
                if result.is_ok() {
                    result = self.on.flush(Patience::Brisk).await;
                }
                claim.borrow_mut().written(time::now(), result);
                block
            }
        });
    }
}
