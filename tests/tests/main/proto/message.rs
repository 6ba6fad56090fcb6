//! Messages on the wire, beside what prost makes of them.

use ttrpc::{
    Any, Metadata, Status,
    prost::Message,
    prost_types,
    proto::message::{
        FrameData, MAX_DETAILS, Malformed, Measured, Request, RequestDecoder, RequestParts,
        ResponseParts, decode_response, encode_status,
    },
};
use ttrpc_tests::wire;

fn reference_request(timeout_nano: i64) -> wire::Request {
    let pair = |key: &str, value: &str| wire::KeyValue { key: key.into(), value: value.into() };
    wire::Request {
        service: "pkg.Service".into(),
        method: "Method".into(),
        payload: prost_types::Timestamp { seconds: 7, nanos: 8 }.encode_to_vec(),
        timeout_nano,
        metadata: vec![pair("k", "1"), pair("k", ""), pair("", "x")],
    }
}

#[test]
fn requests_are_written_as_prost_writes_them() {
    for timeout_nano in [0, 1, -1, i64::MAX] {
        let parts = RequestParts {
            service: "pkg.Service",
            method: "Method",
            payload: Some(Measured::new(&prost_types::Timestamp { seconds: 7, nanos: 8 })),
            timeout_nano,
            metadata: &Metadata::from_iter([("k", "1"), ("k", ""), ("", "x")]),
        };
        let data = parts.to_vec();
        assert_eq!(data, reference_request(timeout_nano).encode_to_vec());
        assert_eq!(data.len(), parts.encoded_len());
    }
}

/// The first of two bytes is the last of one.
#[test]
fn fields_of_every_length_are_written_as_prost_writes_them() {
    for len in [1, 0x7f, 0x80, 0x81, 0x3fff, 0x4000] {
        let (service, value) = ("s".repeat(len), "v".repeat(len));
        let parts = RequestParts {
            service: &service,
            method: "Method",
            payload: None::<Measured<'_, prost_types::Timestamp>>,
            timeout_nano: 0,
            metadata: &Metadata::from_iter([("k", &*value)]),
        };
        let metadata = vec![wire::KeyValue { key: "k".into(), value }];
        let request = wire::Request { service: service.clone(), metadata, ..Default::default() };
        let expected = wire::Request { method: "Method".into(), ..request }.encode_to_vec();
        assert_eq!(parts.to_vec(), expected, "{len} bytes");
    }
}

#[test]
fn pairs_of_metadata_have_a_limited_number_of_fields() {
    // Field 5, a pair whose field 15 is unknown and stands there so often.
    for (fields, is_refused) in [(15, false), (16, true), (60, true)] {
        let pair = [0x78, 0].repeat(fields);
        let mut data = reference_request(7).encode_to_vec();
        data.extend([0x2a, 2 * fields as u8]);
        data.extend(pair);
        let request = Request::decode(&data);
        assert_eq!(matches!(request, Err(Malformed::TooManyFields)), is_refused, "{fields}");
    }
}

#[test]
fn requests_are_read_as_prost_writes_them() {
    for timeout_nano in [0, 1, -1, i64::MAX] {
        let reference = reference_request(timeout_nano);
        let mut data = reference.encode_to_vec();
        data.extend([0x98, 0x06, 0x01]); // An unknown field, 99, with the value 1.
        let request = Request::decode(&data).unwrap();
        assert_eq!(request.names().unwrap(), ("pkg.Service", "Method"));
        assert_eq!(request.payload, reference.payload);
        assert_eq!(request.timeout_nano, timeout_nano);
        assert_eq!(request.metadata.pairs(), 3);
        let metadata = request.metadata.decode().unwrap();
        let pairs: Vec<_> = metadata.iter().collect();
        assert_eq!(pairs, [("k", "1"), ("k", ""), ("", "x")]);
    }
}

#[test]
fn requests_are_read_in_steps_and_no_further_than_to_too_many_pairs() {
    let data = reference_request(7).encode_to_vec();
    let mut decoder = RequestDecoder::new(&data, 3);
    let mut steps = 1;
    while !decoder.advance(1).unwrap() {
        steps += 1;
    }
    let request = decoder.request();
    assert_eq!((steps, request.timeout_nano), (8, 7));
    assert_eq!(request.metadata.cost(), 16 + 3 * 48 + 4 * 32);

    let mut decoder = RequestDecoder::new(&data, 2);
    assert!(matches!(decoder.advance(100), Err(Malformed::TooManyPairs(2))));
}

#[test]
fn requests_have_a_limited_number_of_fields_beside_their_metadata() {
    // Field 15, and metadata's field with a number in place of a pair.
    for unknown in [[0x78, 0], [0x28, 0]] {
        let mut data = reference_request(7).encode_to_vec();
        data.extend(unknown.repeat(4096 - 4));
        let mut decoder = RequestDecoder::new(&data, 3);
        assert!(decoder.advance(usize::MAX).unwrap());
        assert_eq!(decoder.request().metadata.pairs(), 3);
        data.extend(unknown);
        for max_fields in [1, usize::MAX] {
            let mut decoder = RequestDecoder::new(&data, 3);
            let end = (0..5000).find_map(|_| decoder.advance(max_fields).err());
            assert!(matches!(end, Some(Malformed::TooManyFields)));
        }
    }
}

#[test]
fn responses_agree_with_prost_both_ways() {
    let message = prost_types::Duration { seconds: 3, nanos: 0 };
    let reference = wire::Response { status: None, payload: message.encode_to_vec() };
    let data = ResponseParts(Measured::new(&message)).to_vec();
    assert_eq!(data, reference.encode_to_vec());
    assert_eq!(data.len(), ResponseParts(Measured::new(&message)).encoded_len());
    assert_eq!(decode_response(&data).unwrap(), Ok(&reference.payload[..]));

    let status = Status::with_raw_code(99, "no").with_message_detail(&message);
    let data = encode_status(&status);
    let reference = wire::Response::decode(&data[..]).unwrap();
    assert_eq!(reference.status.unwrap().code, 99);
    assert_eq!(decode_response(&data).unwrap(), Err(status));
}

#[test]
fn an_absent_status_and_a_status_of_code_zero_are_successes() {
    assert_eq!(decode_response(&[]).unwrap(), Ok(&[][..]));
    let reference = wire::Response {
        status: Some(wire::Status { message: "fine".into(), ..wire::Status::default() }),
        payload: vec![1],
    };
    assert_eq!(decode_response(&reference.encode_to_vec()).unwrap(), Ok(&[1][..]));
}

#[test]
fn a_status_has_no_more_details_than_are_kept() {
    let mut status = wire::Status { code: 5, ..wire::Status::default() };
    status.details = vec![Any::default(); MAX_DETAILS + 10];
    let reference = wire::Response { status: Some(status), payload: vec![] };
    let decoded = decode_response(&reference.encode_to_vec()).unwrap().unwrap_err();
    assert_eq!((decoded.raw_code(), decoded.details().len()), (5, MAX_DETAILS));
}

#[test]
fn rubbish_is_an_error_and_never_a_panic() {
    assert!(Request::decode(&[0xff; 12]).is_err());
    assert!(matches!(Request::decode(&[0x0a, 5, b'x']), Err(Malformed::Truncated)));
    // There is no field 0.
    assert!(matches!(Request::decode(&[2, 0]), Err(Malformed::Protobuf(_))));
    assert!(matches!(decode_response(&[2, 0]), Err(Malformed::Protobuf(_))));
    let request = Request::decode(&[0x0a, 1, 0xff]).unwrap();
    assert!(matches!(request.names(), Err(Malformed::NotUtf8(_))));
    assert!(decode_response(&[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]).is_err());
}
