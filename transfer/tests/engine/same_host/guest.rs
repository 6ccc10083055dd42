//! A peer of this host that keeps to the form of what is said and to nothing else.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use lunette_runtime::arena::Words;
use lunette_runtime::net::LocalChannel;
use lunette_runtime::{boot_id, time};
use lunette_transfer::engine::{Engine, Refusal};
use lunette_transfer::{Attachments, Connection};
use lunette_transfer_proto::engine::message::{Introduction, Operation, Whereabouts};
use lunette_transfer_proto::engine::same_host::commands::{
    CARRIED_OUT, Command, OWNER_SLEEPS, SUBMITTED, WORDS, answer_at, answer_from_word, command_at,
};
use lunette_transfer_proto::engine::same_host::packet::Packet;
use lunette_transfer_proto::hello::{Hello, VersionRange};

/// What an owner is to prove.
const PROOF: u128 = 7;

/// Asks an engine where it is reached on this host, as somebody who is no engine.
pub(crate) async fn whereabouts(there: &Engine, boot_id: u128) -> Result<Whereabouts, u16> {
    let hello = Hello {
        versions: VersionRange::OURS,
        session_epoch: 1,
        in_flight_max: 16,
        payload_bytes_max: 1 << 20,
        greeting: Vec::new(),
    };
    let patience = Duration::from_secs(5);
    let connection = Connection::connect(there.addresses()[0], hello, patience);
    let connection = connection.await.expect("connected");
    let introduction = Introduction {
        boot_id,
        proof: PROOF,
    };
    let op = Operation::Introduce.to_wire();
    let asked = connection.call(
        op,
        |out| introduction.encode(out),
        Attachments::default(),
        patience,
    );
    let reply = asked.await.expect("an answer");
    if reply.status != 0 {
        return Err(reply.status);
    }
    Ok(Whereabouts::decode(&reply.body).expect("whereabouts"))
}

/// Somebody who was let in, and keeps to the form of packets and to nothing else.
pub(crate) struct Guest {
    channel: LocalChannel,
    words: Words,
    commands: u64,
}

impl Guest {
    pub(crate) async fn new(there: &Engine) -> Self {
        let boot_id = boot_id().expect("a kernel");
        let Whereabouts { ticket, name } = whereabouts(there, boot_id).await.expect("here");
        Self::join(name, ticket).await.expect("let in")
    }

    /// Shows a ticket; `None` if it is not let in.
    pub(crate) async fn join(name: u128, ticket: u128) -> Option<Self> {
        let channel = LocalChannel::connect(&name.to_le_bytes()).expect("it listens");
        let join = Packet::Join { ticket }.encode();
        channel.send(&join, &[]).expect("room");
        let mut welcome = channel.recv().await.expect("a packet or the end")?;
        let packet = Packet::decode(&welcome.bytes).expect("sense");
        assert_eq!(packet, Packet::Welcome { proof: PROOF });
        let commands = welcome.descriptors.pop().expect("the commands");
        Some(Self {
            channel,
            words: Words::map(commands, WORDS).expect("sealed"),
            commands: 0,
        })
    }

    pub(crate) async fn offer(&self, len_bytes: u64, file: &OwnedFd) -> Option<Packet> {
        let offer = Packet::Window { len_bytes }.encode();
        self.channel.send(&offer, &[file.as_fd()]).expect("room");
        self.hear().await
    }

    pub(crate) fn say(&self, packet: Packet) {
        self.say_bytes(&packet.encode());
    }

    pub(crate) fn say_bytes(&self, bytes: &[u8]) {
        self.channel.send(bytes, &[]).expect("room");
    }

    /// What comes next, but for wake-ups; `None` at the end.
    pub(crate) async fn hear(&self) -> Option<Packet> {
        loop {
            let received = self.channel.recv().await.expect("a packet or the end")?;
            let packet = Packet::decode(&received.bytes).expect("sense");
            if packet != Packet::Wake {
                return Some(packet);
            }
        }
    }

    pub(crate) async fn ask(&self, packet: Packet) -> Option<Packet> {
        self.say(packet);
        self.hear().await
    }

    /// Has a command carried out, and waits for its answer.
    pub(crate) async fn command(&mut self, command: Command) -> Result<(), Refusal> {
        let number = self.submit(command);
        while self.words[CARRIED_OUT].load(Ordering::SeqCst) != self.commands {
            time::yield_now().await;
        }
        answer_from_word(self.words[answer_at(number)].load(Ordering::Relaxed))
    }

    pub(crate) fn submit(&mut self, command: Command) -> u64 {
        let number = self.commands;
        let words = &self.words[command_at(number)..];
        for (word, value) in words.iter().zip(command.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        self.commands += 1;
        self.words[SUBMITTED].store(self.commands, Ordering::SeqCst);
        if self.words[OWNER_SLEEPS].swap(0, Ordering::SeqCst) != 0 {
            self.say(Packet::Wake);
        }
        number
    }
}
