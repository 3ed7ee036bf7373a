//! Tokens: who is let in, as whom, until when, and everything that is not.

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Map, Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_gateway::auth::{
    Auth, AuthConfig, AuthConfigError, AuthError, Identity, SECRET_BYTES_MIN, TokenKeys, mint_token,
};
use tidegate_protocol::{CloseCode, ErrorCode};

const SECRET: &[u8] = b"a secret of at least thirty-two bytes";

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

const NOW: u64 = 1_900_000_000;

fn config() -> AuthConfig {
    AuthConfig { keys: Some(TokenKeys::Secret(SECRET.to_vec())), ..AuthConfig::default() }
}

fn auth(config: AuthConfig) -> Auth {
    Auth::new(config).expect("a usable configuration")
}

fn signed(claims: Value) -> String {
    let key = EncodingKey::from_secret(SECRET).expect("a key");
    jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &key).expect("a token")
}

fn enter(auth: &Auth, token: &str) -> Result<Identity, AuthError> {
    auth.authenticate(Some(token), None, at(NOW))
}

#[test]
fn a_minted_token_lets_its_subject_in_until_it_expires() {
    let mut extra = Map::new();
    extra.insert("team".to_owned(), json!("red"));
    let token = mint_token(SECRET, "ann", Duration::from_secs(60), &extra, at(NOW)).expect("minted");
    let auth = auth(config());
    let identity = auth.authenticate(Some(&token), Some("ann"), at(NOW)).expect("let in");
    assert_eq!(identity.subject.0, "ann");
    assert!(identity.claims.contains(r#""team":"red""#));
    // 60 s of life and 30 s of leeway.
    assert_eq!(identity.expires_at, Some(at(NOW + 90)));
    assert!(auth.authenticate(Some(&token), None, at(NOW + 89)).is_ok());
    assert_eq!(auth.authenticate(Some(&token), None, at(NOW + 90)), Err(AuthError::Expired));
    assert_eq!(AuthError::Expired.code().closes(), Some(CloseCode::AuthExpired));
}

#[test]
fn a_user_other_than_the_subject_is_refused_whoever_it_is() {
    let auth = auth(AuthConfig { anonymous: true, ..config() });
    let token = signed(json!({"sub": "ann", "exp": NOW + 60}));
    assert_eq!(auth.authenticate(Some(&token), Some("bob"), at(NOW)), Err(AuthError::UserMismatch));
    assert_eq!(auth.authenticate(None, Some("ann"), at(NOW)), Err(AuthError::UserMismatch));
    assert_eq!(AuthError::UserMismatch.code(), ErrorCode::UserMismatch);
}

#[test]
fn anonymous_sessions_are_taken_only_where_configured() {
    assert_eq!(auth(config()).authenticate(None, None, at(NOW)), Err(AuthError::Required));
    let open = auth(AuthConfig { keys: None, anonymous: true, ..AuthConfig::default() });
    let identity = open.authenticate(None, None, at(NOW)).expect("let in");
    assert!(identity.subject.is_anonymous());
    assert_eq!(identity.expires_at, None);
    // A token that nobody can judge is no anonymous session.
    assert_eq!(enter(&open, &signed(json!({"sub": "ann", "exp": NOW + 60}))), Err(AuthError::Invalid));
    let nobody = Auth::new(AuthConfig::default());
    assert_eq!(nobody.err(), Some(AuthConfigError::NobodyCouldConnect));
}

#[test]
fn the_algorithm_is_the_key_s_and_never_the_token_s() {
    let auth = auth(config());
    let good = signed(json!({"sub": "ann", "exp": NOW + 60}));
    let payload = good.split('.').nth(1).expect("a payload");
    // {"alg":"none"}, {"alg":"none","typ":"JWT"}
    for header in ["eyJhbGciOiJub25lIn0", "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0"] {
        for signature in ["", "AAAA"] {
            assert_eq!(enter(&auth, &format!("{header}.{payload}.{signature}")), Err(AuthError::Invalid));
        }
    }
    for algorithm in [Algorithm::HS384, Algorithm::HS512] {
        let key = EncodingKey::from_secret(SECRET).expect("a key");
        let token =
            jsonwebtoken::encode(&Header::new(algorithm), &json!({"sub": "ann", "exp": NOW + 60}), &key);
        assert_eq!(enter(&auth, &token.expect("a token")), Err(AuthError::Invalid), "{algorithm:?}");
    }
}

/// The public key of RFC 8032's first test and of RFC 7515's third appendix, with their private halves as PKCS #8.
const ED25519: &str =
    r#"{"kty":"OKP","crv":"Ed25519","kid":"ed","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#;
const ED25519_PRIVATE: &str =
    "302e020100300506032b6570042204209d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
const P256: &str = r#"{"kty":"EC","crv":"P-256","kid":"ec","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}"#;
const P256_PRIVATE: &str = "3041020100301306072a8648ce3d020106082a8648ce3d0301070427302502010104208e9b109e719098bf980487df1f5d77e9cb29606ebed2263b5f57c213df84f4b2";

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).expect("hex")).collect()
}

fn asymmetric(algorithm: Algorithm, key: &EncodingKey, kid: &str) -> String {
    let header = Header { kid: Some(kid.to_owned()), ..Header::new(algorithm) };
    jsonwebtoken::encode(&header, &json!({"sub": "ann", "exp": NOW + 60}), key).expect("a token")
}

#[test]
fn public_keys_are_chosen_by_id_and_each_keeps_its_algorithm() {
    let keys = TokenKeys::PublicKeys(format!(r#"{{"keys":[{ED25519},{P256}]}}"#));
    let set = auth(AuthConfig { keys: Some(keys), ..AuthConfig::default() });
    let ed = EncodingKey::from_ed_der(&bytes(ED25519_PRIVATE));
    let ec = EncodingKey::from_ec_der(&bytes(P256_PRIVATE));
    for (algorithm, key, kid, single) in
        [(Algorithm::EdDSA, &ed, "ed", ED25519), (Algorithm::ES256, &ec, "ec", P256)]
    {
        let token = asymmetric(algorithm, key, kid);
        assert_eq!(enter(&set, &token).map(|identity| identity.subject.0), Ok("ann".to_owned()), "{kid}");
        assert_eq!(enter(&set, &asymmetric(algorithm, key, "other")), Err(AuthError::Invalid));
        let one = auth(AuthConfig {
            keys: Some(TokenKeys::PublicKeys(single.to_owned())),
            ..AuthConfig::default()
        });
        assert!(enter(&one, &token).is_ok(), "{kid}");
    }
    assert_eq!(enter(&set, &asymmetric(Algorithm::EdDSA, &ed, "ec")), Err(AuthError::Invalid));
    // The classic confusion: the public key's text as an HMAC secret.
    let confused = EncodingKey::from_secret(ED25519.as_bytes()).expect("a key");
    assert_eq!(enter(&set, &asymmetric(Algorithm::HS256, &confused, "ed")), Err(AuthError::Invalid));
}

#[test]
fn unusable_keys_are_refused_at_start() {
    let with = |keys: TokenKeys| Auth::new(AuthConfig { keys: Some(keys), ..AuthConfig::default() }).err();
    assert_eq!(with(TokenKeys::Secret(vec![7; SECRET_BYTES_MIN - 1])), Some(AuthConfigError::SecretTooShort));
    let symmetric = r#"{"kty":"oct","k":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}"#;
    let nameless = format!(r#"{{"keys":[{},{}]}}"#, ED25519.replace(r#""kid":"ed","#, ""), P256);
    for text in ["", "{}", r#"{"keys":[]}"#, symmetric, &nameless] {
        assert_eq!(
            with(TokenKeys::PublicKeys(text.to_owned())),
            Some(AuthConfigError::UnusableKeys),
            "{text}"
        );
    }
}

#[test]
fn every_malformed_or_untimely_token_is_refused() {
    let auth =
        auth(AuthConfig { issuer: Some("us".to_owned()), audience: Some("sync".to_owned()), ..config() });
    let claims = |change: fn(&mut Value)| {
        let mut claims = json!({"sub": "ann", "exp": NOW + 60, "iss": "us", "aud": "sync"});
        change(&mut claims);
        signed(claims)
    };
    assert!(enter(&auth, &claims(|_| {})).is_ok());
    assert!(enter(&auth, &claims(|c| c["aud"] = json!(["x", "sync"]))).is_ok());
    assert!(enter(&auth, &claims(|c| c["exp"] = json!(NOW as f64 + 60.5))).is_ok());
    assert!(enter(&auth, &claims(|c| c["nbf"] = json!(NOW + 20))).is_ok(), "within the leeway");
    let good = claims(|_| {});
    let mut other_signature = good.clone();
    let last = if other_signature.ends_with('A') { "B" } else { "A" };
    other_signature.replace_range(other_signature.len() - 2..other_signature.len() - 1, last);
    for (what, token) in [
        ("no subject", claims(|c| drop(c.as_object_mut().map(|c| c.remove("sub"))))),
        ("empty subject", claims(|c| c["sub"] = json!(""))),
        ("numeric subject", claims(|c| c["sub"] = json!(7))),
        ("NUL in the subject", claims(|c| c["sub"] = json!("a\0b"))),
        ("long subject", claims(|c| c["sub"] = json!("a".repeat(513)))),
        ("no expiry", claims(|c| drop(c.as_object_mut().map(|c| c.remove("exp"))))),
        ("text expiry", claims(|c| c["exp"] = json!("tomorrow"))),
        ("negative expiry", claims(|c| c["exp"] = json!(-1))),
        ("not yet", claims(|c| c["nbf"] = json!(NOW + 31))),
        ("no issuer", claims(|c| drop(c.as_object_mut().map(|c| c.remove("iss"))))),
        ("other issuer", claims(|c| c["iss"] = json!("them"))),
        ("no audience", claims(|c| drop(c.as_object_mut().map(|c| c.remove("aud"))))),
        ("other audience", claims(|c| c["aud"] = json!("mail"))),
        ("no token", String::new()),
        ("two parts", "a.b".to_owned()),
        ("other signature", other_signature),
        ("huge", format!("{good}{}", "A".repeat(20_000))),
    ] {
        assert_eq!(enter(&auth, &token), Err(AuthError::Invalid), "{what}");
    }
    let eternal = self::auth(AuthConfig { expiry_required: false, ..config() });
    assert_eq!(enter(&eternal, &signed(json!({"sub": "ann"}))).map(|identity| identity.expires_at), Ok(None));
}

#[test]
fn a_session_keeps_its_subject() {
    let auth = auth(config());
    let first = enter(&auth, &signed(json!({"sub": "ann", "exp": NOW + 60}))).expect("let in");
    let fresh =
        auth.refresh(&first, &signed(json!({"sub": "ann", "exp": NOW + 600, "team": "blue"})), at(NOW + 50));
    assert_eq!(fresh.map(|identity| identity.expires_at), Ok(Some(at(NOW + 630))));
    let stranger = auth.refresh(&first, &signed(json!({"sub": "bob", "exp": NOW + 600})), at(NOW));
    assert_eq!(stranger, Err(AuthError::SubjectChange));
    assert_eq!(AuthError::SubjectChange.code().closes(), None, "the session goes on");
}

#[test]
fn q1_neither_secrets_nor_tokens_nor_claims_are_shown() {
    let token = signed(json!({"sub": "SECRET-7f3a", "exp": NOW + 60, "team": "SECRET-7f3a"}));
    let auth = auth(AuthConfig { keys: Some(TokenKeys::Secret(SECRET.to_vec())), ..config() });
    let identity = enter(&auth, &token).expect("let in");
    let shown = format!("{auth:?} {identity:?} {:?}", enter(&auth, &token[1..]));
    assert!(!shown.contains("SECRET-7f3a") && !shown.contains("thirty-two"), "{shown}");
}
