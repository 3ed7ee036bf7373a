//! Who a socket or request acts for. A token and the current time in, an [`Identity`] or a named refusal out; no I/O, no clock.
//!
//! Tokens are JWTs. The algorithm belongs to the key, never to the token: a token that asks for another one, or for `none`, is
//! refused before its signature is looked at. Neither tokens nor secrets nor claims appear in `Debug`, errors or logs (Q1).
//!
//! For the session: [`Auth::authenticate`] at `hello`, [`Auth::refresh`] at `auth`; close with `auth_expired` at
//! [`Identity::expires_at`]. Nothing else is needed.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, decode_header};
use serde_json::{Map, Value};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_model::Subject;
use tidegate_protocol::ErrorCode;

/// Shortest HS256 secret, in bytes: RFC 7518 wants as many as the hash has, and a guessed secret makes every subject.
pub const SECRET_BYTES_MIN: usize = 32;

/// Longest subject, in bytes: it is part of keys in our tables.
const SUBJECT_BYTES_MAX: usize = 512;

/// Longest token that is looked at, in bytes. Far above any real one; bounds the work for a forged one.
const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// How tokens are judged.
#[derive(Clone)]
pub struct AuthConfig {
    /// What signs tokens. `None`: only anonymous sessions are possible.
    pub keys: Option<TokenKeys>,
    /// Whether sessions without a token are taken. Off by default.
    pub anonymous: bool,
    /// Clock difference tolerated between us and the issuer.
    pub leeway: Duration,
    /// The `iss` that a token must carry; `None`: any or none.
    pub issuer: Option<String>,
    /// The `aud` that a token must carry; `None`: any or none.
    pub audience: Option<String>,
    /// Whether a token must expire. On by default: one without `exp` cannot be taken back.
    pub expiry_required: bool,
}

impl Default for AuthConfig {
    fn default() -> AuthConfig {
        AuthConfig {
            keys: None,
            anonymous: false,
            leeway: Duration::from_secs(30),
            issuer: None,
            audience: None,
            expiry_required: true,
        }
    }
}

/// What signs tokens.
#[derive(Clone)]
pub enum TokenKeys {
    /// HS256 with a shared secret of at least [`SECRET_BYTES_MIN`] bytes.
    Secret(Vec<u8>),
    /// RS256, ES256 or EdDSA with public keys: the text of a JWK or of a JWK set. A set's keys are told apart by `kid`.
    PublicKeys(String),
}

impl fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = match &self.keys {
            None => "none",
            Some(TokenKeys::Secret(_)) => "HS256 secret",
            Some(TokenKeys::PublicKeys(_)) => "public keys",
        };
        f.debug_struct("AuthConfig")
            .field("keys", &keys)
            .field("anonymous", &self.anonymous)
            .finish_non_exhaustive()
    }
}

/// A configuration with which no token could be judged safely.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthConfigError {
    /// Neither tokens nor anonymous sessions: nobody could connect.
    #[error("configure tokens: no keys are given and anonymous sessions are off, so nobody could connect")]
    NobodyCouldConnect,
    /// The HS256 secret is short enough to guess.
    #[error("use the token secret: it has fewer than {SECRET_BYTES_MIN} bytes")]
    SecretTooShort,
    /// Not the text of a JWK or JWK set with public RS256, ES256 or EdDSA keys.
    #[error("use the token keys: they are not a JWK or JWK set of RS256, ES256 or EdDSA public keys")]
    UnusableKeys,
}

/// Who a session acts for.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The token's `sub`; empty: anonymous.
    pub subject: Subject,
    /// All claims as JSON, for row-level security; `{}` when anonymous.
    pub claims: Arc<str>,
    /// When it ends, leeway included; `None`: never (anonymous, or a token without `exp` where that is allowed).
    pub expires_at: Option<SystemTime>,
}

impl Identity {
    /// A session without a token.
    pub fn anonymous() -> Identity {
        Identity { subject: Subject::anonymous(), claims: "{}".into(), expires_at: None }
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.subject.is_anonymous() { "anonymous" } else { "subject" };
        f.debug_struct("Identity")
            .field("kind", &kind)
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

/// Why nobody is signed in. Carries nothing of the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// No token, and anonymous sessions are off.
    #[error("a token is required")]
    Required,
    /// Form, algorithm, signature, issuer, audience or subject is wrong.
    #[error("the token is not valid")]
    Invalid,
    /// It was valid once.
    #[error("the token has expired")]
    Expired,
    /// `hello.user` is not the token's subject.
    #[error("the token belongs to another user than the client's store")]
    UserMismatch,
    /// `auth` brought another subject's token.
    #[error("a session keeps its subject: open another connection for another subject")]
    SubjectChange,
}

impl AuthError {
    /// The code of the `error` frame; it also says how the connection closes, if it does.
    pub fn code(self) -> ErrorCode {
        match self {
            AuthError::Required => ErrorCode::AuthRequired,
            AuthError::Invalid => ErrorCode::AuthInvalid,
            AuthError::Expired => ErrorCode::AuthExpired,
            AuthError::UserMismatch => ErrorCode::UserMismatch,
            AuthError::SubjectChange => ErrorCode::SubjectChange,
        }
    }
}

/// Judges tokens. Cheap to share behind an `Arc`.
pub struct Auth {
    config: AuthConfig,
    keys: Vec<Key>,
}

struct Key {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}

impl Auth {
    /// Reads the keys.
    ///
    /// # Errors
    /// [`AuthConfigError`]; start no server then.
    pub fn new(config: AuthConfig) -> Result<Auth, AuthConfigError> {
        let keys = match &config.keys {
            None if config.anonymous => Vec::new(),
            None => return Err(AuthConfigError::NobodyCouldConnect),
            Some(TokenKeys::Secret(secret)) if secret.len() < SECRET_BYTES_MIN => {
                return Err(AuthConfigError::SecretTooShort);
            }
            Some(TokenKeys::Secret(secret)) => {
                let key = DecodingKey::from_secret(secret).map_err(|_| AuthConfigError::UnusableKeys)?;
                vec![Key { id: None, algorithm: Algorithm::HS256, key }]
            }
            Some(TokenKeys::PublicKeys(text)) => public_keys(text).ok_or(AuthConfigError::UnusableKeys)?,
        };
        Ok(Auth { config, keys })
    }

    /// Judges a `hello` or request: the token, then whether the client's idea of its `user` agrees, before anything else.
    ///
    /// # Errors
    /// [`AuthError`]; nothing else of the frame may be looked at then.
    pub fn authenticate(
        &self,
        token: Option<&str>,
        user: Option<&str>,
        now: SystemTime,
    ) -> Result<Identity, AuthError> {
        let identity = match token {
            Some(token) => self.verify(token, now)?,
            None if self.config.anonymous => Identity::anonymous(),
            None => return Err(AuthError::Required),
        };
        if user.is_some_and(|user| user != identity.subject.0) {
            return Err(AuthError::UserMismatch);
        }
        Ok(identity)
    }

    /// Judges an `auth` frame: a fresh token for the same subject.
    ///
    /// # Errors
    /// [`AuthError`]; the session goes on with what it has until that expires.
    pub fn refresh(&self, current: &Identity, token: &str, now: SystemTime) -> Result<Identity, AuthError> {
        let identity = self.verify(token, now)?;
        if identity.subject != current.subject {
            return Err(AuthError::SubjectChange);
        }
        Ok(identity)
    }

    fn verify(&self, token: &str, now: SystemTime) -> Result<Identity, AuthError> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(AuthError::Invalid);
        }
        let header = decode_header(token).map_err(|_| AuthError::Invalid)?;
        // The header only chooses among our keys; the algorithm is the key's.
        let key = match self.keys.as_slice() {
            [only] => only,
            keys => {
                keys.iter().find(|key| key.id.is_some() && key.id == header.kid).ok_or(AuthError::Invalid)?
            }
        };
        let mut validation = Validation::new(key.algorithm);
        // Times are judged below, against the caller's clock. `sub` too: it must be there.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.required_spec_claims.clear();
        match &self.config.audience {
            Some(audience) => {
                validation.set_audience(&[audience]);
                validation.required_spec_claims.insert("aud".to_owned());
            }
            None => validation.validate_aud = false,
        }
        if let Some(issuer) = &self.config.issuer {
            validation.set_issuer(&[issuer]);
            validation.required_spec_claims.insert("iss".to_owned());
        }
        let claims = decode::<Map<String, Value>>(token, &key.key, &validation)
            .map_err(|_| AuthError::Invalid)?
            .claims;
        self.judge(&claims, now)
    }

    fn judge(&self, claims: &Map<String, Value>, now: SystemTime) -> Result<Identity, AuthError> {
        let not_before = instant(claims, "nbf")?;
        if not_before.is_some_and(|instant| now + self.config.leeway < instant) {
            return Err(AuthError::Invalid);
        }
        let expires_at = instant(claims, "exp")?.map(|instant| instant + self.config.leeway);
        match expires_at {
            Some(instant) if instant <= now => return Err(AuthError::Expired),
            None if self.config.expiry_required => return Err(AuthError::Invalid),
            _ => {}
        }
        let subject = match claims.get("sub") {
            // The empty subject is nobody's; PostgreSQL's text holds no NUL.
            Some(Value::String(subject))
                if !subject.is_empty() && subject.len() <= SUBJECT_BYTES_MAX && !subject.contains('\0') =>
            {
                Subject(subject.clone())
            }
            _ => return Err(AuthError::Invalid),
        };
        let claims = serde_json::to_string(claims).map_err(|_| AuthError::Invalid)?;
        Ok(Identity { subject, claims: claims.into(), expires_at })
    }
}

/// A claim in seconds since 1970, which may have a fraction.
fn instant(claims: &Map<String, Value>, name: &str) -> Result<Option<SystemTime>, AuthError> {
    match claims.get(name) {
        None => Ok(None),
        Some(value) => {
            let seconds = value.as_f64().filter(|seconds| *seconds >= 0.0).ok_or(AuthError::Invalid)?;
            // Far beyond any clock: never, for our purposes.
            let since = Duration::try_from_secs_f64(seconds.min(1e12)).map_err(|_| AuthError::Invalid)?;
            Ok(Some(UNIX_EPOCH + since))
        }
    }
}

fn public_keys(text: &str) -> Option<Vec<Key>> {
    let keys = match serde_json::from_str::<JwkSet>(text) {
        Ok(set) => set.keys,
        Err(_) => vec![serde_json::from_str::<Jwk>(text).ok()?],
    };
    let keys = keys.iter().map(public_key).collect::<Option<Vec<_>>>()?;
    // Several keys without ids could not be told apart.
    let usable = !keys.is_empty() && (keys.len() == 1 || keys.iter().all(|key| key.id.is_some()));
    usable.then_some(keys)
}

fn public_key(jwk: &Jwk) -> Option<Key> {
    let algorithm = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => Algorithm::RS256,
        AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P256 => Algorithm::ES256,
        AlgorithmParameters::OctetKeyPair(_) => Algorithm::EdDSA,
        // A symmetric key in a public key set would make a public value a secret.
        _ => return None,
    };
    let stated = match jwk.common.key_algorithm {
        None => algorithm,
        Some(KeyAlgorithm::RS256) => Algorithm::RS256,
        Some(KeyAlgorithm::ES256) => Algorithm::ES256,
        Some(KeyAlgorithm::EdDSA) => Algorithm::EdDSA,
        Some(_) => return None,
    };
    (stated == algorithm).then_some(())?;
    Some(Key { id: jwk.common.key_id.clone(), algorithm, key: DecodingKey::from_jwk(jwk).ok()? })
}

/// Makes an HS256 token: for `tidegate token`, development and tests.
///
/// `claims` are added; `sub`, `iat` and `exp` are set here.
///
/// # Errors
/// [`AuthConfigError::SecretTooShort`].
pub fn mint_token(
    secret: &[u8],
    subject: &str,
    lifetime: Duration,
    claims: &Map<String, Value>,
    now: SystemTime,
) -> Result<String, AuthConfigError> {
    if secret.len() < SECRET_BYTES_MIN {
        return Err(AuthConfigError::SecretTooShort);
    }
    let issued = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut claims = claims.clone();
    claims.insert("sub".to_owned(), subject.into());
    claims.insert("iat".to_owned(), issued.into());
    claims.insert("exp".to_owned(), (issued + lifetime.as_secs()).into());
    let key = EncodingKey::from_secret(secret).map_err(|_| AuthConfigError::UnusableKeys)?;
    jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &key)
        .map_err(|_| AuthConfigError::UnusableKeys)
}
