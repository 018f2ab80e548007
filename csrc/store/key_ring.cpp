#include "store/key_ring.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace kvtrie {
namespace {

constexpr std::string_view kNamespaceUse = "kvtrie.seal.namespace.1", kNamesUse = "kvtrie.seal.names.1",
                           kContentUse = "kvtrie.seal.content.1", kIdUse = "kvtrie.seal.id.1",
                           kScopeUse = "kvtrie.seal.scope.1";

Digest scope_of(std::string_view name_space) { return Sha256(kNamespaceUse).field(name_space).finish(); }

// The other way round it is the same.
Digest masked(const SecretKey& given, const SealSalt& salt, Digest scope) {
  const SecretKey mask = derive_key(given, salt, {field_of(kScopeUse)});
  for (std::size_t i = 0; i < scope.size(); ++i) scope[i] ^= mask.bytes()[i];
  return scope;
}

}  // namespace

std::string to_hex(const KeyId& id) {
  Digest wide{};
  std::copy(id.begin(), id.end(), wide.begin());
  return to_hex(wide).substr(0, 2 * id.size());
}

KeyId id_of(const SecretKey& given) {
  const SecretKey derived = derive_key(given, {}, {field_of(kIdUse)});
  KeyId id;
  std::copy_n(derived.bytes().begin(), id.size(), id.begin());
  return id;
}

NamespaceKey::NamespaceKey(const SecretKey& given, std::string_view name_space)
    : NamespaceKey(given, scope_of(name_space)) {}

NamespaceKey::NamespaceKey(const SecretKey& given, const Digest& scope)
    : given_(given),
      own_(derive_key(given, {}, {field_of(kNamespaceUse), scope})),
      names_(derive_key(own_, {}, {field_of(kNamesUse)})),
      scope_(scope),
      id_(id_of(given)) {}

Digest NamespaceKey::masked_scope(const SealSalt& salt) const { return masked(given_, salt, scope_); }

SecretKey NamespaceKey::content_key(const SealSalt& salt, std::span<const std::byte> head,
                                    std::string_view place) const {
  return derive_key(own_, salt, {field_of(kContentUse), head, field_of(place)});
}

Digest NamespaceKey::name(Fields fields) const { return keyed_digest(names_, fields); }

KeyRing::KeyRing(const Keys& for_all, Random random) : random_(std::move(random)) { add(for_all, std::nullopt); }

KeyRing::KeyRing(const std::map<std::string, Keys>& for_each, Random random) : random_(std::move(random)) {
  require(!for_each.empty(), "keys", "namespaces: got 0, allowed 1 or more");
  for (const auto& [name_space, keys] : for_each) {
    first_.emplace(name_space, given_.size());
    add(keys, name_space);
  }
}

void KeyRing::add(const Keys& keys, std::optional<std::string_view> name_space) {
  require(!keys.empty(), "keys", "keys of a namespace: got 0, allowed 1 or more");
  for (const SecretKey& key : keys) {
    Given given{key, id_of(key), std::nullopt};
    if (name_space) given.scope = scope_of(*name_space);
    given_.push_back(std::move(given));
  }
}

bool KeyRing::has(std::string_view name_space) const noexcept {
  return first_.empty() || first_.find(name_space) != first_.end();
}

NamespaceKey KeyRing::sealing(std::string_view name_space) const {
  const auto found = first_.find(name_space);
  ensure(first_.empty() || found != first_.end(), "keys", "the namespace has one");
  return {given_[first_.empty() ? 0 : found->second].key, name_space};
}

bool KeyRing::knows(const KeyId& id) const noexcept {
  return std::any_of(given_.begin(), given_.end(), [&](const Given& each) { return each.id == id; });
}

std::optional<NamespaceKey> KeyRing::opening(const KeyId& id, const SealSalt& salt, const Digest& masked_scope) const {
  for (const Given& each : given_) {
    if (each.id != id) continue;
    const Digest scope = masked(each.key, salt, masked_scope);
    if (!each.scope || *each.scope == scope) return NamespaceKey(each.key, scope);
  }
  return std::nullopt;
}

bool KeyRing::may_be(const NamespaceKey& key, std::string_view name_space) {
  return key.scope_ == scope_of(name_space);
}

bool KeyRing::random(std::span<std::byte> bytes) const noexcept {
  try {
    return random_ && random_(bytes);
  } catch (...) {
    return false;
  }
}

}  // namespace kvtrie
