//! Soft-iWARP: siw0 and siw1, which only the connection manager connects.

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use lunette_runtime::Idle;
    use lunette_verbs::{Calls, Context, RemoteMemory, RequestError};

    use crate::managed;
    use crate::rig::{on_core, scenes, soon};

    /// The ports are there once.
    fn alone<F: Future<Output = ()> + 'static>(test: impl FnOnce(Context, Context) -> F + Send) {
        static PORTS: Mutex<()> = Mutex::new(());
        let _ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
        on_core(Idle::Efficient, || {
            let open = |name| Context::open(name).expect("a soft-iWARP device");
            test(open("siw0"), open("siw1"))
        });
    }

    #[test]
    fn devices_are_described() {
        alone(|a, _b| async move {
            let info = a.info().expect("described");
            assert!(
                info.is_active && info.is_iwarp && info.is_ethernet,
                "{info:?}"
            );
            assert!(!info.has_atomics, "{info:?}");
        });
    }

    #[test]
    fn bytes_and_messages_go_as_over_any_other_and_what_iwarp_lacks_is_refused() {
        alone(|context, other| async move {
            let (a, b) = managed::connect_managed(&context, &other).await;
            assert!(!a.pair.has_immediates() && !a.pair.agreement().has_atomics);
            scenes::bytes_go_there_and_back(&a, &b).await;
            scenes::messages_meet_receives(&a, &b).await;
            scenes::messages_meet_receives(&b, &a).await;
            let remote = b.window.remote();
            let refused = Err(RequestError::Refused);
            let added = a.pair.fetch_add(a.piece(&[0; 8]), remote, 1, soon()).await;
            assert_eq!((added.0, added.1.is_some()), (refused, true));
            assert_eq!(a.pair.notify(1, soon()).await.0, refused);
            let bulk = (a.pair).write_immediate(a.piece(b"bulk"), 4, remote, 1, soon());
            assert_eq!(bulk.await.0, refused);
            let fine = a.pair.write_inline(&[7], remote, soon()).await;
            a.confirm(&b).await;
            assert_eq!((fine.0, b.seen(0, 1)), (Ok(()), vec![7]));
        });
    }

    #[test]
    fn what_the_provider_cannot_build_goes_by_lists() {
        alone(|_a, _b| async move {
            let open = |name| Context::open_with(name, Calls::Extended).expect("a device");
            let (a, b) = managed::connect_managed(&open("siw0"), &open("siw1")).await;
            assert!(!a.pair.is_built(), "the provider of siw has no builder");
            scenes::bytes_go_there_and_back(&a, &b).await;
            scenes::messages_meet_receives(&a, &b).await;
        });
    }

    #[test]
    fn refusals_are_told() {
        alone(|a, b| async move { managed::refusals_are_told(&a, &b).await });
    }

    #[test]
    fn an_end_is_told() {
        alone(|a, b| async move {
            let (one, other) = managed::connect_managed(&a, &b).await;
            managed::an_end_is_told(&one, other).await;
        });
    }

    #[test]
    fn a_key_that_allows_nothing_ends_the_connection_and_a_new_one_works() {
        alone(|a, b| async move {
            let (one, other) = managed::connect_managed(&a, &b).await;
            let remote = other.window.remote();
            let wrong = RemoteMemory {
                rkey: remote.rkey ^ 0xff00,
                ..remote
            };
            let write = |to| one.pair.write(one.piece(&[1; 8]), 8, to, soon());
            assert!(!one.pair.confirms_writes());
            let requests = [remote, wrong, remote.at(8)].map(write);
            for request in requests {
                let (outcome, piece) = request.await;
                assert!(piece.is_some(), "memory comes back in every case");
                assert!(outcome.is_ok() || outcome.is_err_and(RequestError::is_retryable));
            }
            // What is done was only handed over; this would have confirmed it.
            let read = one.pair.read(one.piece(&[0; 8]), 8, remote, soon()).await;
            assert!(read.0.is_err(), "the peer ended the connection");
            assert_eq!(one.pair.arrival().await.err(), Some(RequestError::Broken));
            assert_eq!(
                other.seen(8, 8),
                [0; 8],
                "nothing came behind the wrong key"
            );
            drop((one, other));
            let (one, other) = managed::connect_managed(&a, &b).await;
            let written = (one.pair).write_inline(&[5], other.window.remote(), soon());
            assert_eq!(written.await.0, Ok(()));
            one.confirm(&other).await;
            assert_eq!(other.seen(0, 1), [5]);
        });
    }
}
