//! Both dialects, from one end to the other and in any pieces.

use super::*;

const DIALECTS: [Dialect; 2] = [Dialect::Redis, Dialect::Http];

fn asks() -> Vec<Ask> {
    let key = |key: &str| key.to_owned();
    vec![
        Ask::Put {
            key: key("mooncake/ram/a b%&\u{e4}"),
            value: b"{\"a\":1}\r\n\0\xff".to_vec(),
        },
        Ask::Get {
            key: key("mooncake/ram/a b%&\u{e4}"),
        },
        Ask::Delete { key: key("k") },
        Ask::Put {
            key: "k".repeat(KEY_BYTES_MAX),
            value: vec![7; 5000],
        },
    ]
}

#[test]
fn asks_and_answers_pass_in_any_pieces() {
    for dialect in DIALECTS {
        for piece in [1, 7, 100_000] {
            let mut stream = Vec::new();
            asks()
                .iter()
                .for_each(|ask| ask.append(dialect, "host:1", &mut stream));
            let (mut reader, mut read) = (AskReader::new(dialect), Vec::new());
            for piece in stream.chunks(piece) {
                reader.push(piece);
                while let Some(ask) = reader.next_ask().expect("well formed") {
                    read.push(ask.expect("understood"));
                }
            }
            assert_eq!(read, asks(), "{dialect:?} {piece}");
        }
    }
}

#[test]
fn each_answer_reaches_who_asked() {
    let [get, put, delete] = [
        Ask::Get { key: "k".into() },
        Ask::Put {
            key: "k".into(),
            value: b"v".to_vec(),
        },
        Ask::Delete { key: "k".into() },
    ];
    for dialect in DIALECTS {
        for (ask, answer) in [
            (&get, Answer::Found(b"v\r\n".to_vec())),
            (&get, Answer::Absent),
            (&put, Answer::Done),
            (&delete, Answer::Done),
            (&delete, Answer::Absent),
        ] {
            let mut stream = Vec::new();
            append_answer(dialect, Some(ask), &Ok(answer.clone()), &mut stream);
            let mut reader = AnswerReader::new(dialect);
            for byte in &stream[..stream.len() - 1] {
                reader.push(&[*byte]);
                assert_eq!(reader.next_answer(ask), Ok(None), "{dialect:?} {answer:?}");
            }
            reader.push(&stream[stream.len() - 1..]);
            assert_eq!(reader.next_answer(ask), Ok(Some(Ok(answer))), "{dialect:?}");
        }
        let refused = Err(MetadataFault::Refused {
            message: "ERR no".into(),
        });
        let mut stream = Vec::new();
        append_answer(dialect, None, &refused, &mut stream);
        let mut reader = AnswerReader::new(dialect);
        reader.push(&stream);
        let read = reader
            .next_answer(&get)
            .expect("well formed")
            .expect("whole");
        let said = read.expect_err("refused").to_string();
        assert!(said.ends_with("ERR no"), "{said}");
    }
}

#[test]
fn what_is_no_frame_is_a_fault_that_stays() {
    for (dialect, stream) in [
        (Dialect::Redis, &b"?what\r\n"[..]),
        (Dialect::Redis, b"$x\r\n"),
        (Dialect::Redis, b"$-5\r\n"),
        (Dialect::Http, b"what is this\r\n\r\n"),
        (Dialect::Http, b"HTTP/1.1 200 OK\r\n\r\n"),
        (
            Dialect::Http,
            b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        ),
    ] {
        let ask = Ask::Get { key: "k".into() };
        let mut reader = AnswerReader::new(dialect);
        reader.push(stream);
        let fault = reader.next_answer(&ask).expect_err("malformed");
        assert!(matches!(fault, MetadataFault::Malformed { .. }), "{fault}");
        let mut good = Vec::new();
        append_answer(dialect, Some(&ask), &Ok(Answer::Absent), &mut good);
        reader.push(&good);
        assert!(reader.next_answer(&ask).is_err(), "{dialect:?}: it stays");
    }
    // An answer to something else.
    let mut reader = AnswerReader::new(Dialect::Redis);
    reader.push(b":1\r\n");
    assert!(reader.next_answer(&Ask::Get { key: "k".into() }).is_err());
}

#[test]
fn commands_that_are_not_known_are_refused_and_the_next_one_is_read() {
    for (dialect, stream) in [
        (
            Dialect::Redis,
            &b"*1\r\n$4\r\nPING\r\n*1\r\n$3\r\nGET\r\n*2\r\n$3\r\nget\r\n$1\r\nk\r\n"[..],
        ),
        (
            Dialect::Http,
            b"POST /metadata?key=k HTTP/1.1\r\n\r\nGET /metadata HTTP/1.1\r\n\r\n\
              GET /metadata?key=k HTTP/1.1\r\n\r\n",
        ),
    ] {
        let mut reader = AskReader::new(dialect);
        reader.push(stream);
        for _ in 0..2 {
            let refused = reader.next_ask().expect("well formed").expect("whole");
            assert!(
                matches!(refused, Err(MetadataFault::Refused { .. })),
                "{refused:?}"
            );
        }
        let ask = reader.next_ask().expect("well formed").expect("whole");
        assert_eq!(ask, Ok(Ask::Get { key: "k".into() }));
    }
}

#[test]
fn limits_hold_from_both_sides() {
    let put = |key: usize, value: usize| {
        let ask = Ask::Put {
            key: "k".repeat(key),
            value: vec![0; value],
        };
        ask.check().is_ok()
    };
    assert!(put(1, 1) && put(KEY_BYTES_MAX, VALUE_BYTES_MAX));
    assert!(!put(0, 1) && !put(1, 0));
    assert!(!put(KEY_BYTES_MAX + 1, 1) && !put(1, VALUE_BYTES_MAX + 1));
    let mut records = Records::new(Dialect::Redis);
    let mut put = |number: usize| {
        let ask = Ask::Put {
            key: number.to_string(),
            value: vec![1],
        };
        records.handle(ask).is_ok()
    };
    assert!((0..RECORDS_MAX).all(&mut put) && put(0));
    assert!(!put(RECORDS_MAX));
}

#[test]
fn who_an_engine_is_may_be_put_once_over_http() {
    for dialect in DIALECTS {
        let mut records = Records::new(dialect);
        let put = || Ask::Put {
            key: "mooncake/rpc_meta/a".into(),
            value: vec![1],
        };
        assert_eq!(records.handle(put()), Ok(Answer::Done));
        let again = records.handle(put());
        assert_eq!(again.is_ok(), dialect == Dialect::Redis, "{again:?}");
    }
}
