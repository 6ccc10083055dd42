//! Requests that come by messages, between adapters.

use std::rc::Rc;

use lunette_kvstore_proto::message::{Op, Status};
use lunette_runtime::Scope;
use lunette_transfer::adapters::{Heard, Messages};
use lunette_transfer::{Intake, RequestHead, Service};
use lunette_transfer_proto::frame::FrameKind;
use lunette_transfer_proto::message::{self, MessageFault};
use thiserror::Error;

use super::MemberService;
use crate::counting::CopyCounts;
use crate::member::pushing::Over;
use crate::refusals::refusal;

/// A reader does not keep to the rules: its queue pair is broken off.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
enum AskedFault {
    #[error(transparent)]
    Message(#[from] MessageFault),
    #[error("a message that is no request")]
    NoRequest,
    #[error("more requests than may be under way")]
    TooMany,
}

impl MemberService {
    /// Answers what comes by messages of this core's adapters, those that are added later too, for as long as it is
    /// polled.
    pub(crate) async fn hear(self: Rc<Self>) {
        let (tasks, mut known) = (Scope::new(), 0);
        loop {
            let (more, all) = self.core.pushing().messages_from(known);
            known = all;
            for (index, messages) in more {
                let hearing = hear_at(Rc::clone(&self), index, messages);
                if let Err(error) = tasks.spawn(hearing) {
                    tracing::warn!(%error, "what readers ask by messages is not heard");
                }
            }
            self.core.pushing().added().await;
        }
    }

    fn on_message(&self, (adapter, number): (usize, u32), bytes: &[u8]) {
        let Some(over) = self.core.pushing().over(adapter, number) else {
            return tracing::debug!(number, "a message of a queue pair that has ended");
        };
        if let Err(fault) = self.on_asked(over, bytes) {
            tracing::warn!(?over, %fault, "a reader's queue pair is broken off");
            self.core.pushing().break_off(over);
        }
    }

    fn on_asked(&self, over: Over, bytes: &[u8]) -> Result<(), AskedFault> {
        let frame = message::decode(bytes)?;
        let (code, id) = (frame.header.code, frame.header.id);
        if frame.header.kind != FrameKind::Request {
            return Err(AskedFault::NoRequest);
        }
        let pushing = self.core.pushing();
        let under_way = pushing.begin_asked(over).ok_or(AskedFault::TooMany)?;
        CopyCounts::add(&self.core.copies.asked_by_adapters);
        if !Op::try_from(code).is_ok_and(Op::may_be_message) {
            pushing.answer(over, id, refusal(Status::Unsupported));
            return Ok(());
        }
        let request = RequestHead {
            connection: over.connection,
            op: code,
            body: frame.body,
            payload_len_bytes: 0,
            payload_crc32c: 0,
            is_message: true,
        };
        match self.on_request(request) {
            Intake::Answer(response) => pushing.answer(over, id, response),
            Intake::Later(later) => {
                let core = Rc::clone(&self.core);
                let answering = async move {
                    let response = later.answer().await;
                    drop(under_way);
                    core.pushing().answer(over, id, response);
                };
                if !pushing.answer_later(over, answering) {
                    pushing.answer(over, id, refusal(Status::Busy));
                }
            }
            // No payload comes by a message.
            Intake::Receive { .. } => pushing.answer(over, id, refusal(Status::BadRequest)),
        }
        Ok(())
    }
}

/// Hears one adapter.
async fn hear_at(service: Rc<MemberService>, adapter: usize, messages: Rc<Messages>) {
    loop {
        let take = |number: u32, heard: Heard<'_>| match heard {
            Heard::Message(bytes) => service.on_message((adapter, number), bytes),
            Heard::Notice { immediate, .. } => tracing::debug!(immediate, "a reader's notice"),
        };
        if let Err(error) = messages.hear(take).await {
            return tracing::warn!(%error, "no messages come by an adapter any more");
        }
    }
}
