//! The key provider of confidential containers, ported: the service of the confidential data hub, which is
//! asynchronous, and the client in ocicrypt, which waits. `docs/guide/migration.md` says what the port changed. The
//! interface and what can be seen from outside are theirs.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use std::{error::Error, sync::Arc, time::Duration};
use ttrpc::{Code, Context, Server, Status, async_trait, blocking, testing};
use ttrpc_tests::harness::PATIENCE;

mod keyprovider {
    include!(concat!(env!("OUT_DIR"), "/default_bodies/keyprovider.rs"));
}
use keyprovider::{
    KeyProviderKeyWrapProtocolInput as Input, KeyProviderKeyWrapProtocolOutput as Output,
    KeyProviderService, KeyProviderServiceBlockingClient, KeyProviderServiceServer,
};

/// What unwraps keys behind the service: there the hub, here what a test says.
#[async_trait]
trait Hub: Send + Sync + 'static {
    async fn unwrap_key(&self, annotation: &[u8]) -> Result<Vec<u8>, HubError>;
}

type HubError = Box<dyn Error + Send + Sync>;

struct KeyProvider<H>(H);

#[async_trait]
impl<H: Hub> KeyProviderService for KeyProvider<H> {
    async fn un_wrap_key(&self, _ctx: &Context, input: Input) -> Result<Output, Status> {
        let annotation = annotation(&input.key_provider_key_wrap_protocol_input)
            .map_err(failed("[ERROR] UnwrapKey Parse request failed"))?;
        let key = self.0.unwrap_key(&annotation).await;
        let key = key.map_err(failed("[CDH] [ERROR]: UnwrapKey failed"))?;
        let output = json!({ "keyunwrapresults": { "optsdata": key } });
        Ok(Output { key_provider_key_wrap_protocol_output: output.to_string().into_bytes() })
    }
}

/// The caller reads the message; the cause stays here.
fn failed(message: &str) -> impl Fn(HubError) -> Status {
    move |error| Status::internal(message).with_source(error)
}

async fn serve(
    address: &str,
    hub: impl Hub,
    stop: impl Future<Output = ()>,
) -> Result<(), ttrpc::Error> {
    let service = KeyProviderServiceServer::new(KeyProvider(hub));
    let server = Server::builder().add_service(service).bind(address)?.build()?;
    server.serve_until(stop, Duration::from_secs(5)).await
}

fn unwrap_key(client: blocking::Client, input: Vec<u8>) -> Result<Vec<u8>, Box<dyn Error>> {
    let input = Input { key_provider_key_wrap_protocol_input: input };
    let provider = KeyProviderServiceBlockingClient::new(client);
    let output = provider.un_wrap_key(input).timeout(Duration::from_secs(50)).call()?;
    results(&output.key_provider_key_wrap_protocol_output)
}

/// The annotation in a request of JSON, in which it is encoded in base 64.
fn annotation(input: &[u8]) -> Result<Vec<u8>, HubError> {
    let input: Value = serde_json::from_slice(input)?;
    let annotation = input["keyunwrapparams"]["annotation"].as_str();
    Ok(STANDARD.decode(annotation.ok_or("no annotation is given")?)?)
}

/// The key in a reply of JSON.
fn results(output: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let output: Value = serde_json::from_slice(output)?;
    Ok(serde_json::from_value(output["keyunwrapresults"]["optsdata"].clone())?)
}

/// Gives the annotation back, in the other direction.
struct Reverse;

#[async_trait]
impl Hub for Reverse {
    async fn unwrap_key(&self, annotation: &[u8]) -> Result<Vec<u8>, HubError> {
        match annotation {
            b"unknown" => Err("no such key".into()),
            annotation => Ok(annotation.iter().rev().copied().collect()),
        }
    }
}

/// A request as ocicrypt makes it.
fn request(annotation: &str) -> Vec<u8> {
    let params = json!({ "dc": { "Parameters": {} }, "annotation": STANDARD.encode(annotation) });
    let wrap = json!({ "ec": null, "optsdata": null });
    let input = json!({ "op": "keyunwrap", "keywrapparams": wrap, "keyunwrapparams": params });
    input.to_string().into_bytes()
}

fn connect() -> blocking::Client {
    testing::connect_blocking(KeyProviderServiceServer::new(KeyProvider(Reverse)))
}

fn status(result: Result<Vec<u8>, Box<dyn Error>>) -> Status {
    *result.unwrap_err().downcast().expect("the provider answers")
}

#[test]
fn a_key_is_unwrapped() {
    assert_eq!(unwrap_key(connect(), request("abc")).unwrap(), b"cba");
}

#[test]
fn what_fails_is_said_without_the_cause() {
    let failed = status(unwrap_key(connect(), request("unknown")));
    assert_eq!(
        (failed.code(), failed.message()),
        (Code::Internal, "[CDH] [ERROR]: UnwrapKey failed")
    );
    for input in [&b"no JSON"[..], b"{}", br#"{"keyunwrapparams":{"annotation":"!"}}"#] {
        let failed = status(unwrap_key(connect(), input.to_vec()));
        assert_eq!(failed.code(), Code::Internal);
        assert_eq!(failed.message(), "[ERROR] UnwrapKey Parse request failed");
    }
}

#[test]
fn a_method_that_the_provider_does_not_have_is_refused() {
    let provider = KeyProviderServiceBlockingClient::new(connect());
    let refused = provider.wrap_key(Input::default()).call().unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
}

#[tokio::test]
async fn the_provider_serves_on_a_socket_until_it_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let address = Arc::new(format!("unix://{}", folder.path().join("key.sock").display()));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = serve(&address, Reverse, async { drop(stopped.await) });
    let calling = async {
        let address = address.clone();
        let call = move || {
            let connect = ttrpc::client::ConnectOptions::new().retry_for(PATIENCE);
            unwrap_key(connect.connect_blocking(&address).unwrap(), request("abc")).unwrap()
        };
        assert_eq!(tokio::task::spawn_blocking(call).await.unwrap(), b"cba");
        stop.send(()).unwrap();
    };
    let (served, ()) = tokio::join!(serving, calling);
    served.unwrap();
}
