//! Peers under a test's control.

use std::net::SocketAddr;
use std::time::Duration;

use lunette_runtime::net::{TcpListener, TcpStream};
use lunette_runtime::time;
use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::ids::RequestId;
use lunette_transfer_proto::frame::{FrameKind, GOAWAY_HAS_READ, PayloadDigest, encode_frame};
use lunette_transfer_proto::hello::{Handshake, Hello, VersionRange};
use lunette_transfer_proto::receiver::{Receiver, ReceiverLimits, Step};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn hello() -> Hello {
    Hello {
        versions: VersionRange::OURS,
        session_epoch: 1,
        in_flight_max: 64,
        payload_bytes_max: 4 << 20,
        greeting: b"hi".to_vec(),
    }
}

pub(crate) fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0".parse().expect("address")).expect("a port");
    let address = listener.local_addr();
    (listener, address)
}

/// A peer under the test's control: shakes hands, then hands the stream over.
pub(crate) async fn fake_peer(listener: TcpListener) -> TcpStream {
    let stream = listener.accept().await.expect("accepted");
    let mut receiver = Receiver::new(ReceiverLimits::HELLO);
    let mut handshake = Handshake::acceptor(hello(), time::now() + SECOND);
    let (count, buffer) = stream.recv(vec![0; 4096], 0, 4096).await;
    let mut input = &buffer[..count.expect("received")];
    let mut answer = Vec::new();
    match receiver.step(&mut input).expect("a hello") {
        Step::Frame(frame) => drop(handshake.handle(frame, &mut answer)),
        step => unreachable!("{step:?}"),
    }
    let len = answer.len();
    stream.send_all(answer, 0, len).await.0.expect("sent");
    stream
}

/// The id of the next request, which has no payload.
pub(crate) async fn next_request(stream: &TcpStream) -> RequestId {
    let (count, buffer) = stream.recv(vec![0; 4096], 0, 4096).await;
    let mut input = &buffer[..count.expect("received")];
    let mut receiver = Receiver::new(ReceiverLimits::open(0));
    match receiver.step(&mut input).expect("a request") {
        Step::Frame(frame) => frame.header.id,
        step => unreachable!("{step:?}"),
    }
}

pub(crate) async fn send(stream: &TcpStream, bytes: Vec<u8>) {
    let len = bytes.len();
    stream.send_all(bytes, 0, len).await.0.expect("sent");
}

/// A word of farewell: so many requests were read.
pub(crate) fn goaway(read: u64) -> Vec<u8> {
    let (mut out, read) = (Vec::new(), RequestId(read));
    encode_frame(
        &mut out,
        FrameKind::Goaway,
        GOAWAY_HAS_READ,
        read,
        &[],
        None,
    );
    out
}

pub(crate) fn response(id: RequestId, bytes: &[u8]) -> Vec<u8> {
    let len_bytes = u32::try_from(bytes.len()).expect("small");
    let digest = PayloadDigest {
        len_bytes,
        crc32c: crc32c(bytes),
    };
    let mut out = Vec::new();
    encode_frame(&mut out, FrameKind::Response, 0, id, &[], Some(digest));
    out.extend_from_slice(bytes);
    out
}
