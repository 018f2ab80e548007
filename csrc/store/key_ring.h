// The keys that state is sealed with outside the process: which namespaces have one, and what is derived from it.
//
// Concept. The caller gives one key for each namespace, or one for all of them; behind it older ones, with which
// nothing is sealed any more, only opened. A ring never changes. From a given key G and a namespace follow:
//
//     scope      SHA-256("kvtrie.seal.namespace.1", namespace)
//     K          HKDF(G, "kvtrie.seal.namespace.1", scope)          the namespace's own, also where G is for all
//       names    HKDF(K, "kvtrie.seal.names.1")                     what names in a folder or store are made with
//       content  HKDF(K, salt, "kvtrie.seal.content.1", head, place)  of one content (sealed_content.h)
//     id         HKDF(G, "kvtrie.seal.id.1")[0, 8)                  tells keys apart, and nothing else
//     mask       HKDF(G, salt, "kvtrie.seal.scope.1")               what hides the scope in a head, by exclusive or
//
// So a head says, to those who have G and to nobody else, whose namespace a content is of. Fields are as aead.h says.
//
// With keys for each namespace, one without any has no way out of the process: whoever writes or sends asks `has`
// before. Random numbers are the caller's; were they ever to repeat, so would salts, and two contents under one key
// give both away.
//
// Threads: any; `random` is called from several at once. Errors: kArgument for no keys.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/aead.h"
#include "base/digest.h"

namespace kvtrie {

using KeyId = std::array<std::byte, 8>;
using SealSalt = std::array<std::byte, 32>;
std::string to_hex(const KeyId& id);  // 16 characters, lower case
KeyId id_of(const SecretKey& given);

// One given key as it serves one namespace.
class NamespaceKey {
 public:
  NamespaceKey(const SecretKey& given, std::string_view name_space);

  const KeyId& id() const noexcept { return id_; }
  Digest masked_scope(const SealSalt& salt) const;
  SecretKey content_key(const SealSalt& salt, std::span<const std::byte> head, std::string_view place) const;
  // The name of what has these fields, the first of which says what kind it is. Nobody without the key can confirm it.
  Digest name(Fields fields) const;

 private:
  friend class KeyRing;
  NamespaceKey(const SecretKey& given, const Digest& scope);
  SecretKey given_, own_, names_;
  Digest scope_{};
  KeyId id_{};
};

class KeyRing {
 public:
  // Fills the bytes with random ones that nobody can guess; false: there are none.
  using Random = std::function<bool(std::span<std::byte>)>;
  using Keys = std::vector<SecretKey>;  // the one to seal with, then older ones

  KeyRing(const Keys& for_all, Random random);
  KeyRing(const std::map<std::string, Keys>& for_each, Random random);
  KeyRing(const KeyRing&) = delete;
  KeyRing& operator=(const KeyRing&) = delete;

  bool has(std::string_view name_space) const noexcept;
  NamespaceKey sealing(std::string_view name_space) const;  // REQUIRES: has
  bool knows(const KeyId& id) const noexcept;
  // The key of what has such a head; nothing: it is of no key or namespace of this ring.
  std::optional<NamespaceKey> opening(const KeyId& id, const SealSalt& salt, const Digest& masked_scope) const;
  // Whether a content that was opened with `key` may be of this namespace.
  static bool may_be(const NamespaceKey& key, std::string_view name_space);
  bool random(std::span<std::byte> bytes) const noexcept;

 private:
  struct Given {
    SecretKey key;
    KeyId id{};
    std::optional<Digest> scope;  // of the only namespace it is for; nothing: it is for all
  };
  void add(const Keys& keys, std::optional<std::string_view> name_space);

  std::vector<Given> given_;
  std::map<std::string, std::size_t, std::less<>> first_;  // by namespace, into `given_`; empty: one for all
  Random random_;
};
using KeyRingPtr = std::shared_ptr<const KeyRing>;  // null: nothing is sealed

}  // namespace kvtrie
