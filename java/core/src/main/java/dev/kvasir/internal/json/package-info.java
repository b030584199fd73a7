/** JSON for headers, metadata and the settings of models, and files written whole or not at all. Not part of the API. */
@NullMarked
package dev.kvasir.internal.json;

import org.jspecify.annotations.NullMarked;
