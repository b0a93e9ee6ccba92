//! Guards before the macros of `tracing`.

/// [`tracing::event!`], if `$key` is on: `event_if!(KEY, Level::INFO, field = value, "message")`.
#[macro_export]
macro_rules! event_if {
    ($key:path, $($event:tt)+) => {
        if $crate::hidden::branch!(unlikely $key) {
            $crate::hidden::tracing::event!($($event)+);
        }
    };
}

/// [`tracing::span!`], if `$key` is on, and otherwise a disabled span: `span_if!(KEY, Level::INFO, "name", field =
/// value)`.
#[macro_export]
macro_rules! span_if {
    ($key:path, $($span:tt)+) => {
        if $crate::hidden::branch!(unlikely $key) {
            $crate::hidden::tracing::span!($($span)+)
        } else {
            $crate::hidden::tracing::Span::none()
        }
    };
}

/// [`tracing::event!`] of a level that is spelt `ERROR`, `WARN`, `INFO`, `DEBUG` or `TRACE`, behind that level's key:
/// `event!(DEBUG, field = value, "message")`.
#[macro_export]
macro_rules! event {
    ($level:ident, $($event:tt)+) => {
        if $crate::hidden::branch!(unlikely $crate::keys::$level) {
            $crate::hidden::tracing::event!($crate::hidden::tracing::Level::$level, $($event)+);
        }
    };
}

/// [`tracing::error!`] behind the key `tracing.error`.
#[macro_export]
macro_rules! error {
    ($($event:tt)+) => { $crate::event!(ERROR, $($event)+) };
}

/// [`tracing::warn!`] behind the key `tracing.warn`.
#[macro_export]
macro_rules! warn {
    ($($event:tt)+) => { $crate::event!(WARN, $($event)+) };
}

/// [`tracing::info!`] behind the key `tracing.info`.
#[macro_export]
macro_rules! info {
    ($($event:tt)+) => { $crate::event!(INFO, $($event)+) };
}

/// [`tracing::debug!`] behind the key `tracing.debug`.
#[macro_export]
macro_rules! debug {
    ($($event:tt)+) => { $crate::event!(DEBUG, $($event)+) };
}

/// [`tracing::trace!`] behind the key `tracing.trace`.
#[macro_export]
macro_rules! trace {
    ($($event:tt)+) => { $crate::event!(TRACE, $($event)+) };
}
