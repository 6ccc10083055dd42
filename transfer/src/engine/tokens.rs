//! The tokens that a peer was shown, and that it is shown again on each new connection: it forgets what
//! was redeemed when the last connection has ended.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use lunette_runtime_core::codec::Reader;
use lunette_transfer_proto::engine::message::{Descriptor, Operation, finish};

use super::error::OpenError;
use super::grants::{GRANTS_MAX, Token};
use super::peer::{Peer, RemoteSegment, Shared};
use super::{Inner, Refusal};
use crate::client::{Attachments, Connection, Reply};

/// Tokens of one peer. At the bound they are shown again, which tells those that are revoked.
pub(super) type Tokens = BTreeSet<Token>;

impl Peer {
    /// Presents a capability that the peer's program has [granted](super::Engine::grant) to this engine,
    /// and opens what it is for: a segment with its owner's offsets, whose length is where the granted
    /// range ends. Below the range the peer refuses, as [`Refusal::OutOfRange`].
    ///
    /// It holds over every rail, and the peer is shown it again on new connections, so nothing is to be
    /// done when those that there were are lost. When it is revoked, accesses are refused:
    /// [`Refusal::Revoked`], or [`Refusal::NoCapability`] if connections were lost in between.
    ///
    /// The engine itself needs no capability: through a peer [that it is](Peer::is_self), its own segments
    /// are reached also after they have been revoked.
    ///
    /// # Errors
    /// [`OpenError`]; [`Refusal::BadCapability`] for another engine's or a forged one,
    /// [`Refusal::Revoked`], [`Refusal::Stale`] if its segment was unregistered, [`Refusal::Busy`] beyond
    /// [`GRANTS_MAX`].
    pub async fn redeem(&self, token: &Token) -> Result<RemoteSegment, OpenError> {
        let shared = &self.shared;
        let is_known = shared.tokens.borrow().contains(token);
        if !is_known && shared.tokens.borrow().len() >= GRANTS_MAX {
            self.shed_tokens().await;
            if shared.tokens.borrow().len() >= GRANTS_MAX {
                return Err(OpenError::Refused(Refusal::Busy));
            }
        }
        // Before it is known to hold: a connection that comes up meanwhile is to show it too.
        shared.tokens.borrow_mut().insert(*token);
        let reply = self
            .ask(Operation::Redeem, |out| out.extend(token.as_bytes()))
            .await;
        let descriptor = reply.and_then(|reply| describe(&reply));
        if let Err(error) = &descriptor
            && (!is_known || is_dead(error))
        {
            shared.tokens.borrow_mut().remove(token);
        }
        if descriptor.is_ok() {
            self.show_other_cores(token).await;
        }
        Ok(RemoteSegment::granted(shared.epoch, descriptor?))
    }

    /// Shows a token that holds over the other connections too, where the peer has several cores: each
    /// remembers what it was shown.
    async fn show_other_cores(&self, token: &Token) {
        let mut destinations = self.shared.destinations.iter();
        if !destinations.any(|to| to.cores.borrow().is_some()) {
            return;
        }
        for connection in self.shared.connections() {
            // Where it is lost, the next one is shown everything.
            drop(present(&self.shared.engine, &connection, token).await);
        }
    }

    /// Forgets tokens that do not hold any more.
    async fn shed_tokens(&self) {
        let up = self
            .shared
            .state
            .borrow()
            .rails
            .iter()
            .flatten()
            .next()
            .cloned();
        if let Some(connection) = up {
            // What was not answered stays.
            drop(self.shared.present(&connection).await);
        }
    }
}

impl Shared {
    /// Those that are up.
    fn connections(&self) -> Vec<Connection> {
        let state = self.state.borrow();
        state.rails.iter().flatten().cloned().collect()
    }

    /// Shows all tokens over a connection, which carries nothing else before. Those that do not hold any
    /// more are forgotten.
    ///
    /// # Errors
    /// [`OpenError::Call`]: not all were answered, and nothing is to go over that connection.
    pub(super) async fn present(&self, connection: &Connection) -> Result<(), OpenError> {
        let tokens: Vec<Token> = self.tokens.borrow().iter().copied().collect();
        let asked = tokens.into_iter().map(|token| {
            Box::pin(async move { (token, present(&self.engine, connection, &token).await) })
        });
        let mut asked: Vec<Pin<Box<_>>> = asked.collect();
        let mut unanswered = None;
        poll_fn(|cx| {
            asked.retain_mut(|asking| match asking.as_mut().poll(cx) {
                Poll::Pending => true,
                Poll::Ready((token, Err(error))) if is_dead(&error) => {
                    tracing::debug!(%error, "a capability is forgotten");
                    self.tokens.borrow_mut().remove(&token);
                    false
                }
                Poll::Ready((_, Err(error @ OpenError::Call(_)))) => {
                    unanswered = Some(error);
                    false
                }
                Poll::Ready(_) => false,
            });
            if asked.is_empty() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        unanswered.map_or(Ok(()), Err)
    }
}

async fn present(engine: &Inner, connection: &Connection, token: &Token) -> Result<(), OpenError> {
    let asked = connection.call(
        Operation::Redeem.to_wire(),
        |out| out.extend(token.as_bytes()),
        Attachments::default(),
        engine.options.connect_timeout,
    );
    let reply = asked
        .await
        .map_err(|failure| OpenError::Call(failure.error))?;
    match Refusal::from_wire(reply.status) {
        None => Ok(()),
        Some(refusal) => Err(OpenError::Refused(refusal)),
    }
}

fn describe(reply: &Reply) -> Result<Descriptor, OpenError> {
    let mut reader = Reader::new(&reply.body);
    let descriptor = Descriptor::decode(&mut reader).map_err(|_| OpenError::Malformed)?;
    finish(&reader).map_err(|_| OpenError::Malformed)?;
    Ok(descriptor)
}

/// Whether a token will not hold again.
const fn is_dead(error: &OpenError) -> bool {
    matches!(
        error,
        OpenError::Refused(
            Refusal::Stale | Refusal::Revoked | Refusal::BadCapability | Refusal::Malformed
        )
    )
}
