#!/bin/sh
# Makes an authority and certificates of it with openssl, in the current folder. For a small installation, or to see how it works; where there is
# an authority already, let it sign the same things. Running it again for a server or a client renews the certificate, with a new key.
#
#   make-certificates.sh authority NAME                   NAME.ca (give it out) and NAME.ca.key (keep it)
#   make-certificates.sh server AUTHORITY NAME SAN...     NAME.crt and NAME.key of who is dialled; SAN: DNS:name or IP:address, as it is dialled
#   make-certificates.sh client AUTHORITY NAME SAN...     NAME.crt and NAME.key of who dials; SAN: DNS:, URI:, email: or IP:
#
# DAYS is how long it is valid: 3650 for an authority and 365 for the rest, unless it is set.
set -eu
umask 077

fail() {
  echo "make-certificates.sh: $*" >&2
  exit 2
}

plain() {
  case $1 in
    '' | [!A-Za-z0-9]* | *[!A-Za-z0-9._-]*) fail "'$1' cannot be a file's name here: letters, digits, dots, dashes, no dash first" ;;
  esac
}

serial() { printf '0x%s' "$(openssl rand -hex 16)"; }

authority() {
  plain "$1"
  [ ! -e "$1.ca" ] && [ ! -e "$1.ca.key" ] || fail "the authority $1 is there already; all its certificates would be worthless"
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -sha256 -days "${DAYS:-3650}" -set_serial "$(serial)" \
    -subj "/CN=$1" -addext basicConstraints=critical,CA:TRUE,pathlen:0 -addext keyUsage=critical,keyCertSign,cRLSign \
    -keyout "$1.ca.key" -out "$1.ca" 2>/dev/null || fail "openssl did not make the authority $1"
  chmod 644 "$1.ca"
  echo "$1.ca: give it to whoever is to believe this authority; $1.ca.key stays here"
}

# certificate PURPOSE AUTHORITY NAME SAN...
certificate() {
  purpose=$1 of=$2 name=$3
  shift 3
  plain "$of"
  plain "$name"
  [ -r "$of.ca.key" ] || fail "$of.ca.key is not here; make the authority first: make-certificates.sh authority $of"
  [ $# -gt 0 ] || fail "$name needs at least one SAN, such as DNS:$name.example"
  names=
  for san; do
    case $san in
      *[!A-Za-z0-9.:/@_~*-]*) fail "'$san' has characters that no name has" ;;
      DNS:?* | IP:?* | URI:?* | email:?*) names=${names:+$names,}$san ;;
      *) fail "'$san' is none of DNS:name, IP:address, URI:uri, email:address" ;;
    esac
  done
  work=$(mktemp -d "./.$name.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  # The purpose makes it impossible to use a guest's certificate for dialling other guests, and a person's for playing a server.
  cat > "$work/extensions" <<EXTENSIONS
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=$purpose
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
subjectAltName=$names
EXTENSIONS
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -sha256 -subj "/CN=$name" -keyout "$work/key" -out "$work/request" \
    2>/dev/null || fail "openssl did not make a key for $name"
  openssl x509 -req -sha256 -days "${DAYS:-365}" -set_serial "$(serial)" -in "$work/request" -CA "$of.ca" -CAkey "$of.ca.key" \
    -extfile "$work/extensions" -out "$work/certificate" 2>/dev/null || fail "openssl did not sign $names for $name"
  chmod 644 "$work/certificate"
  mv "$work/key" "$name.key"
  mv "$work/certificate" "$name.crt"
  echo "$name.crt, $name.key: $purpose as $names"
}

command -v openssl >/dev/null || fail "openssl is missing (Debian: apt-get install openssl)"
case "${1:-} $#" in
  'authority 2') authority "$2" ;;
  'server '[3-9] | 'server '[1-9][0-9]) shift && certificate serverAuth "$@" ;;
  'client '[3-9] | 'client '[1-9][0-9]) shift && certificate clientAuth "$@" ;;
  *) fail "how it is called stands at the top of this file" ;;
esac
