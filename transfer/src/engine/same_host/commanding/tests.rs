//! Rules that one side breaks, in words that no packet could carry.

use std::time::Duration;

use lunette_runtime::arena::{Exposed, HugePages};
use lunette_runtime::{CoreOptions, block_on};

use super::super::super::{
    Batch, Cause, Engine, EngineOptions, Peer, PostOptions, Refusal, RegisterOptions, Rights,
    Transfer,
};
use super::*;

const LEN: usize = 8 << 20;

fn engine() -> Engine {
    let options = EngineOptions {
        listen: vec!["127.0.0.1:0".parse().expect("an address")],
        ..EngineOptions::default()
    };
    Engine::start(options).expect("an engine")
}

/// Two engines, the second's memory, and a write to it that is copied.
struct Scene {
    here: Engine,
    there: Engine,
    peer: Peer,
    link: Rc<Link>,
    target: Exposed,
    local: Exposed,
    batch: Batch,
}

impl Scene {
    async fn new() -> Self {
        let (here, there) = (engine(), engine());
        let memory = || Exposed::map(LEN, HugePages::Never, &mut Vec::new()).expect("memory");
        let (target, local) = (memory(), memory());
        let named = RegisterOptions::named("kv");
        there.register(target.clone(), &named).expect("registered");
        here.register(local.clone(), &named).expect("registered");
        let peer = here.open(there.addresses()).await.expect("open");
        let remote = peer.segment("kv").await.expect("a segment");
        let mut batch = Batch::new();
        batch.write(local.clone(), &remote, 0).expect("a write");
        // Until its memory is lent, and nothing goes through the window any more.
        while here.statistics().same_host_bytes == here.statistics().window_bytes {
            let posted = peer.post(&batch, PostOptions::default());
            posted.expect("posted").await.expect("done");
        }
        let link = peer.shared.link().expect("it is here");
        Self {
            here,
            there,
            peer,
            link,
            target,
            local,
            batch,
        }
    }

    fn post(&self) -> Transfer {
        let posted = self.peer.post(&self.batch, PostOptions::default());
        posted.expect("posted")
    }

    /// The link is gone, and writes go over the rails.
    async fn goes_on(&self) {
        time::sleep(Duration::from_millis(5)).await;
        assert!(!self.peer.is_same_host());
        assert!(self.link.commanding.under_way.borrow().is_empty());
        let copied = self.here.statistics().same_host_bytes;
        self.local.copy_in(0, b"later");
        self.post().await.expect("done");
        assert_eq!(self.target.slice(0, 5).to_vec(), b"later");
        assert_eq!(self.here.statistics().same_host_bytes, copied);
    }
}

#[test]
fn an_owner_survives_counts_that_cannot_be_and_what_was_under_way_is_done() {
    block_on(None, CoreOptions::default(), || async {
        let scene = Scene::new().await;
        scene.local.copy_in(LEN - 3, b"end");
        let under_way = [scene.post(), scene.post(), scene.post()];
        assert!(scene.link.commanding.lane.borrow().with_owner() > 0);
        scene.link.commanding.words[SUBMITTED].store(1 << 40, Ordering::Release);
        for transfer in under_way {
            let done = transfer.await.expect("done");
            assert_eq!(done.len_bytes, LEN as u64);
        }
        assert_eq!(scene.target.slice(LEN - 3, 3).to_vec(), b"end");
        scene.goes_on().await;
    })
    .expect("a core");
}

#[test]
fn an_owner_does_not_copy_to_what_is_reached_by_capability() {
    block_on(None, CoreOptions::default(), || async {
        let scene = Scene::new().await;
        let kept = Exposed::map(LEN, HugePages::Never, &mut Vec::new()).expect("memory");
        let by_capability = RegisterOptions {
            by_capability: true,
            ..RegisterOptions::named("kept")
        };
        let kept_id = scene.there.register(kept.clone(), &by_capability);
        let kept_id = kept_id.expect("registered");
        assert!(
            scene
                .there
                .inner
                .registry
                .borrow_mut()
                .share(kept_id, true)
                .is_err()
        );
        let (here, rights) = (scene.here.epoch(), Rights::READ_WRITE);
        let token = scene.there.grant(kept_id, here, rights, 0..LEN as u64);
        let redeemed = scene.peer.redeem(&token.expect("granted")).await;
        let remote = redeemed.expect("redeemed");
        let mut batch = Batch::new();
        batch
            .write(scene.local.clone(), &remote, 0)
            .expect("a write");
        let posted = Rc::new(Posted::new(&batch, PostOptions::default(), time::now()));
        // An engine would not: it knows that it goes over the rails.
        let shared = &scene.peer.shared;
        assert_eq!(shared.post_here(&posted), Ok(false));
        assert_eq!(shared.command_here(&scene.link, &posted), Ok(true));
        let peer = scene.peer.clone();
        let error = Transfer { peer, posted }.await.expect_err("refused");
        let cause = Cause::Refused(Refusal::NoCapability);
        assert_eq!(error.failures[0].cause, cause);
        assert_eq!(kept.slice(0, 100).to_vec(), vec![0; 100]);
    })
    .expect("a core");
}

#[test]
fn what_was_being_read_through_the_window_is_read_over_the_rails() {
    block_on(None, CoreOptions::default(), || async {
        let scene = Scene::new().await;
        let whole = Exposed::map(LEN + 4096, HugePages::Never, &mut Vec::new()).expect("memory");
        let part = whole.slice(4096, LEN);
        part.copy_in(LEN - 3, b"end");
        let named = RegisterOptions::named("part");
        scene.there.register(part, &named).expect("registered");
        let remote = scene.peer.segment("part").await.expect("a segment");
        let mut batch = Batch::new();
        batch.read(scene.local.clone(), &remote, 0).expect("a read");
        let by_window = scene.here.statistics().window_bytes;
        let posted = scene.peer.post(&batch, PostOptions::default());
        let under_way = posted.expect("posted");
        assert!(scene.link.commanding.lane.borrow().with_owner() > 0);
        scene.link.commanding.words[SUBMITTED].store(1 << 40, Ordering::Release);
        let done = under_way.await.expect("done");
        assert_eq!(done.len_bytes, LEN as u64);
        assert_eq!(scene.local.slice(LEN - 3, 3).to_vec(), b"end");
        assert_eq!(scene.here.statistics().window_bytes, by_window);
        scene.goes_on().await;
    })
    .expect("a core");
}

#[test]
fn an_asker_survives_counts_that_cannot_be() {
    block_on(None, CoreOptions::default(), || async {
        let scene = Scene::new().await;
        scene.link.commanding.words[CARRIED_OUT].store(1 << 40, Ordering::Release);
        scene.goes_on().await;
    })
    .expect("a core");
}
