//! The order of ready tasks in worlds: drawn from the seed, within what classes promise.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::Future;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use lunette_runtime::sim::{World, WorldOptions};
use lunette_runtime::{Class, CoreOptions, spawn_local, spawn_local_as, time};

const SECOND: Duration = Duration::from_secs(1);
const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

type Order = Rc<RefCell<Vec<char>>>;

/// What the tasks of a core, started by `start`, have said after a while.
fn said<F>(seed: u64, draws_tasks: bool, start: impl FnOnce(Order) -> F + 'static) -> Vec<char>
where
    F: Future<Output = ()> + 'static,
{
    let options = WorldOptions {
        draws_tasks,
        ..WorldOptions::default()
    };
    let mut world = World::new(seed, options);
    let process = world.start(HOST, 1, CoreOptions::default());
    let order = Order::default();
    let told = Rc::clone(&order);
    let ended = world.spawn(process, 0, move || start(told));
    world.run_for(SECOND);
    assert!(ended.is_there(), "seed {seed}");
    order.take()
}

async fn three(order: Order) {
    let tasks: Vec<_> = ['a', 'b', 'c']
        .map(|name| {
            let order = Rc::clone(&order);
            spawn_local(async move { order.borrow_mut().push(name) })
        })
        .into();
    for task in tasks {
        task.await.expect("no panic");
    }
}

#[test]
fn every_order_of_three_tasks_occurs_and_each_seed_has_its_own() {
    let mut orders = BTreeSet::new();
    for seed in 0..100 {
        let order = said(seed, true, three);
        assert_eq!(order, said(seed, true, three), "seed {seed}");
        orders.insert(order);
    }
    assert_eq!(orders.len(), 6, "{orders:?}");
}

#[test]
fn a_world_that_does_not_draw_runs_them_as_they_became_ready() {
    for seed in 0..20 {
        assert_eq!(said(seed, false, three), ['a', 'b', 'c'], "seed {seed}");
    }
}

/// Tasks that are woken by others within one turn are drawn as well.
#[test]
fn tasks_that_go_on_are_drawn_among_those_that_wait() {
    let mut orders = BTreeSet::new();
    for seed in 0..50 {
        orders.insert(said(seed, true, |order| async move {
            let tasks = ['a', 'b'].map(|name| {
                let order = Rc::clone(&order);
                spawn_local(async move {
                    for _ in 0..2 {
                        order.borrow_mut().push(name);
                        time::yield_now().await;
                    }
                })
            });
            for task in tasks {
                task.await.expect("no panic");
            }
        }));
    }
    assert_eq!(orders.len(), 6, "all ways to put them together: {orders:?}");
}

/// A task for which somebody waits runs after one other at most, whatever is drawn.
#[test]
fn classes_keep_their_promise() {
    for seed in 0..50 {
        let order = said(seed, true, |order| async move {
            let tell = |name| {
                let order = Rc::clone(&order);
                async move { order.borrow_mut().push(name) }
            };
            for _ in 0..20 {
                drop(spawn_local(tell('n')));
                drop(spawn_local_as(Class::Background, tell('b')));
            }
            for _ in 0..3 {
                drop(spawn_local_as(Class::Latency, tell('l')));
            }
            time::sleep(SECOND / 2).await;
        });
        let first = order.iter().position(|name| *name == 'l');
        assert!(
            first.is_some_and(|first| first <= 1),
            "seed {seed}: {order:?}"
        );
        assert_eq!(order.len(), 43, "seed {seed}");
    }
}
