/** Many machines and tenants over the policies of the library: ./gradlew simulate. */
package dev.kvasir.prefix.simulate;
